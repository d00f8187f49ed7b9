#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include <portile/core/device.hpp>
#include <portile/core/dtype.hpp>
#include <portile/core/export.hpp>

namespace portile {

inline constexpr int max_rank = 5;
using extents_t = std::array<std::int64_t, max_rank>;

/// Non-owning view of elements on a device: pointer, type, extents and strides in stored elements.
/// A default-constructed tensor is absent (dtype none): optional arguments are left that way.
struct tensor {
  void* data = nullptr;
  portile::dtype dtype = portile::dtype::none;
  std::int32_t rank = 0;
  extents_t extents{};
  extents_t strides{};
  portile::device device{};

  bool defined() const { return dtype != portile::dtype::none; }
  explicit operator bool() const { return defined(); }
  std::int64_t extent(int i) const { return extents[static_cast<std::size_t>(i)]; }
  std::int64_t stride(int i) const { return strides[static_cast<std::size_t>(i)]; }
  /// Number of stored elements; 1 for rank 0.
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= extent(i);
    return n;
  }
  PORTILE_API bool contiguous() const;
  /// Elements from the first to the last one addressed, both included; 0 when empty.
  PORTILE_API std::int64_t span() const;
  PORTILE_API std::string text() const;  ///< "bf16[4001, 7104] strides [7104, 1] on cpu"
};

/// Row-major contiguous tensor over memory of the caller.
PORTILE_API tensor make_tensor(void* data, dtype type, std::span<const std::int64_t> extents,
                               device where = {});
PORTILE_API tensor make_tensor(void* data, dtype type, std::span<const std::int64_t> extents,
                               std::span<const std::int64_t> strides, device where = {});

template <class T>
tensor make_tensor(T* data, std::initializer_list<std::int64_t> extents, device where = {}) {
  return make_tensor(const_cast<std::remove_const_t<T>*>(data), dtype_of<std::remove_const_t<T>>,
                     {extents.begin(), extents.size()}, where);
}
inline tensor make_tensor(void* data, dtype type, std::initializer_list<std::int64_t> extents,
                          device where = {}) {
  return make_tensor(data, type, std::span<const std::int64_t>{extents.begin(), extents.size()}, where);
}
inline tensor make_tensor(void* data, dtype type, std::initializer_list<std::int64_t> extents,
                          std::initializer_list<std::int64_t> strides, device where = {}) {
  return make_tensor(data, type, std::span<const std::int64_t>{extents.begin(), extents.size()},
                     std::span<const std::int64_t>{strides.begin(), strides.size()}, where);
}

/// Row-major strides of these extents.
PORTILE_API extents_t contiguous_strides(std::span<const std::int64_t> extents);

/// A list of at most 64 tensors, for operations on several layers or weights at once.
struct tensor_list {
  static constexpr std::int64_t max_size = 64;
  const tensor* data = nullptr;
  std::int64_t size = 0;
  const tensor& operator[](std::int64_t i) const { return data[i]; }
};

}  // namespace portile
