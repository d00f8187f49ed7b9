#pragma once
// Host memory for tests: every buffer is poisoned and stands between guard bands.
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <portile/core/tensor.hpp>

namespace portile::test {

/// Owns the buffers of the tensors it makes. New tensors hold the poison byte 0xA5 everywhere.
class memory {
 public:
  static constexpr unsigned char poison = 0xA5, guard = 0x5A;
  static constexpr std::size_t band = 512;

  tensor make(dtype type, std::initializer_list<std::int64_t> extents) {
    const extents_t s = contiguous_strides({extents.begin(), extents.size()});
    return make(type, {extents.begin(), extents.size()},
                std::span<const std::int64_t>(s).first(extents.size()));
  }
  tensor make(dtype type, std::initializer_list<std::int64_t> extents,
              std::initializer_list<std::int64_t> strides) {
    return make(type, {extents.begin(), extents.size()}, {strides.begin(), strides.size()});
  }
  tensor make(dtype type, std::span<const std::int64_t> extents, std::span<const std::int64_t> strides) {
    tensor t = make_tensor(nullptr, type, extents, strides);
    const std::size_t bytes = static_cast<std::size_t>(t.span() * size_of(type));
    buffers_.push_back({std::vector<unsigned char>(bytes + 2 * band + 256, guard), 0, bytes});
    buffer& b = buffers_.back();
    b.offset = band + (256 - (reinterpret_cast<std::uintptr_t>(b.bytes.data()) + band) % 256) % 256;
    std::memset(b.bytes.data() + b.offset, poison, bytes);
    t.data = b.bytes.data() + b.offset;
    return t;
  }
  /// Contiguous, with these values (converted by static_cast).
  template <class T, class V>
  tensor of(std::initializer_list<std::int64_t> extents, const std::vector<V>& values) {
    tensor t = make(dtype_of<T>, extents);
    for (std::size_t i = 0; i < values.size(); ++i) static_cast<T*>(t.data)[i] = static_cast<T>(values[i]);
    return t;
  }
  /// False when a byte outside the buffers changed.
  bool guards_intact() const {
    for (const buffer& b : buffers_)
      for (std::size_t i = 0; i < b.bytes.size(); ++i)
        if ((i < b.offset || i >= b.offset + b.size) && b.bytes[i] != guard) return false;
    return true;
  }
  /// True when the whole buffer of a tensor made here still holds the poison.
  static bool untouched(const tensor& t) {
    const auto* p = static_cast<const unsigned char*>(t.data);
    for (std::int64_t i = 0; i < t.span() * size_of(t.dtype); ++i)
      if (p[i] != poison) return false;
    return true;
  }

 private:
  struct buffer {
    std::vector<unsigned char> bytes;
    std::size_t offset, size;
  };
  std::deque<buffer> buffers_;
};

/// Element i, j of a tensor of rank 1 or 2.
template <class T>
T& at(const tensor& t, std::int64_t i, std::int64_t j = 0) {
  return static_cast<T*>(t.data)[i * t.stride(0) + (t.rank > 1 ? j * t.stride(1) : 0)];
}

/// N(0, 1) values in a contiguous f32, bf16 or e4m3 tensor.
inline void fill_normal(const tensor& t, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const float v = normal(rng);
    switch (t.dtype) {
      case dtype::f32:
        static_cast<float*>(t.data)[i] = v;
        break;
      case dtype::bf16: {
        std::uint32_t u;
        std::memcpy(&u, &v, 4);
        static_cast<std::uint16_t*>(t.data)[i] = static_cast<std::uint16_t>(u >> 16);
        break;
      }
      default:
        static_cast<unsigned char*>(t.data)[i] = static_cast<unsigned char>(rng() & 0x77);
        break;
    }
  }
}

}  // namespace portile::test
