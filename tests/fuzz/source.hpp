#pragma once
// Decisions drawn from a fuzzer's bytes and, once they run out, from a generator that they seed: every input,
// even an empty one, is a whole problem, and the same input is always the same problem.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>

namespace portile::fuzz {

class source {
 public:
  source(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {
    for (std::size_t i = 0; i < size; ++i) state_ = (state_ ^ data[i]) * 0x100000001b3u;  // FNV-1a
  }
  /// Generator only.
  explicit source(std::uint64_t seed) : data_(nullptr), size_(0), state_(seed * 0xd1342543de82ef95u) {}

  std::uint8_t byte() {
    if (at_ < size_) return data_[at_++];
    return static_cast<std::uint8_t>(bits() >> 56);
  }
  /// Never from the bytes: for the contents of tensors (splitmix64).
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, n), n at most 256.
  int below(int n) { return byte() * n / 256; }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T pick(std::initializer_list<T> from) {
    return *std::next(from.begin(), below(static_cast<int>(from.size())));
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace portile::fuzz
