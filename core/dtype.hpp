#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <portile/core/export.hpp>
#include <portile/core/numeric/types.hpp>

namespace portile {

/// Element type of a tensor. One element of a packed type holds several values along the last dimension:
/// e2m1x2 two in a byte, ue8m0x4 four in an int32; e5m6x8 is bytes, twelve of which hold eight values.
enum class dtype : std::uint8_t {
  none = 0,
  f32,
  f64,
  bf16,
  f16,
  e4m3,
  e4m3fnuz,
  e5m2,
  e2m1x2,
  e5m6x8,
  ue8m0x4,
  i8,
  i16,
  i32,
  i64,
  u8,
  u32,
  boolean,
};
inline constexpr int num_dtypes = 18;

PORTILE_API std::string_view to_string(dtype type);
/// dtype::none when no type has this name.
PORTILE_API dtype dtype_from_string(std::string_view name);
/// Bytes of one stored element; 0 for none.
PORTILE_API std::int64_t size_of(dtype type);
/// Stored elements that hold `values` values along the last dimension (rounded up to whole elements).
PORTILE_API std::int64_t stored_extent(dtype type, std::int64_t values);
/// Values in `stored` elements along the last dimension; ue8m0x4 counts its unused bytes too.
PORTILE_API std::int64_t value_extent(dtype type, std::int64_t stored);

/// A short ordered list of element types; the first is the default of the command line.
class dtypes {
 public:
  constexpr dtypes() = default;
  constexpr dtypes(dtype one) : list_{one}, size_(1) {}
  constexpr dtypes(std::initializer_list<dtype> types) {
    for (dtype t : types) list_[size_++] = t;
  }
  constexpr bool contains(dtype t) const {
    for (int i = 0; i < size_; ++i)
      if (list_[i] == t) return true;
    return false;
  }
  constexpr dtype first() const { return list_[0]; }
  constexpr const dtype* begin() const { return list_.data(); }
  constexpr const dtype* end() const { return list_.data() + size_; }
  constexpr int size() const { return size_; }
  PORTILE_API std::string text() const;  ///< "bf16 or f32"

 private:
  std::array<dtype, num_dtypes> list_{};
  int size_ = 0;
};

/// dtype of a C++ element type.
template <class T>
inline constexpr dtype dtype_of = dtype::none;
template <>
inline constexpr dtype dtype_of<float> = dtype::f32;
template <>
inline constexpr dtype dtype_of<double> = dtype::f64;
template <>
inline constexpr dtype dtype_of<numeric::bf16> = dtype::bf16;
template <>
inline constexpr dtype dtype_of<numeric::f16> = dtype::f16;
template <>
inline constexpr dtype dtype_of<numeric::e4m3> = dtype::e4m3;
template <>
inline constexpr dtype dtype_of<numeric::e4m3fnuz> = dtype::e4m3fnuz;
template <>
inline constexpr dtype dtype_of<numeric::e5m2> = dtype::e5m2;
template <>
inline constexpr dtype dtype_of<numeric::e2m1x2> = dtype::e2m1x2;
template <>
inline constexpr dtype dtype_of<numeric::e5m6x8> = dtype::e5m6x8;
template <>
inline constexpr dtype dtype_of<numeric::ue8m0x4> = dtype::ue8m0x4;
template <>
inline constexpr dtype dtype_of<std::int8_t> = dtype::i8;
template <>
inline constexpr dtype dtype_of<std::int16_t> = dtype::i16;
template <>
inline constexpr dtype dtype_of<std::int32_t> = dtype::i32;
template <>
inline constexpr dtype dtype_of<std::int64_t> = dtype::i64;
template <>
inline constexpr dtype dtype_of<std::uint8_t> = dtype::u8;
template <>
inline constexpr dtype dtype_of<std::uint32_t> = dtype::u32;
template <>
inline constexpr dtype dtype_of<bool> = dtype::boolean;

}  // namespace portile
