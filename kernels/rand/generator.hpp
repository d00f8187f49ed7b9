#pragma once
#include <portile/core/dispatch.hpp>
#include <portile/kernels/rand/randn.hpp>

namespace portile {

/// The state of a random stream, on the host: a seed and the number of the next call. Two generators with one
/// seed give the same numbers, call by call. For one thread at a time.
class generator {
 public:
  explicit generator(std::uint64_t seed = 0) { set_seed(seed); }
  /// Starts the stream of this seed from its beginning.
  void set_seed(std::uint64_t seed) {
    seed_ = seed;
    offset_ = 0;
  }
  std::uint64_t seed() const { return seed_; }
  std::uint64_t offset() const { return offset_; }  ///< calls since set_seed

  /// Fills `out` with standard normal numbers. A call that throws does not advance the stream.
  void randn(queue& q, const tensor& out) {
    run(q, rand::randn{.out = out,
                       .seed = static_cast<std::int64_t>(seed_),
                       .offset = static_cast<std::int64_t>(offset_)});
    ++offset_;
  }
  /// The same in `memory` of the caller's, as a contiguous tensor with the shape, dtype and device of x.
  tensor randn_like(queue& q, const tensor& x, void* memory) {
    const tensor out = make_tensor(
        memory, x.dtype, std::span<const std::int64_t>(x.extents).first(static_cast<std::size_t>(x.rank)),
        x.device);
    randn(q, out);
    return out;
  }

 private:
  std::uint64_t seed_ = 0, offset_ = 0;
};

}  // namespace portile
