#pragma once
// Scale factors as the references read and write them: any layout, by block index.
#include <portile/core/numeric/scale.hpp>
#include <portile/core/numeric/stochastic.hpp>
#include <portile/kernels/quant/scales.hpp>

#include "backends/reference/space.hpp"

namespace portile::reference {

/// sf(i, j) of a given tensor of scales as fp32, whatever its dtype and strides. Absent: 1.
struct scale_reader {
  const void* data = nullptr;
  dtype type = dtype::none;
  std::int64_t row_stride = 0, col_stride = 0;
  bool along_rows = false;  ///< four exponents of one word belong to four rows

  scale_reader() = default;
  scale_reader(const tensor& t, bool pack_along_rows)
      : data(t.data),
        type(t.dtype),
        row_stride(t.stride(0)),
        col_stride(t.stride(1)),
        along_rows(pack_along_rows) {}

  KOKKOS_FUNCTION float operator()(std::int64_t i, std::int64_t j) const {
    switch (type) {
      case dtype::f32:
        return static_cast<const float*>(data)[i * row_stride + j * col_stride];
      case dtype::e4m3:
        return load(static_cast<const numeric::e4m3*>(data)[i * row_stride + j * col_stride]);
      case dtype::ue8m0x4: {
        const std::int64_t row = along_rows ? i / 4 : i, col = along_rows ? j : j / 4;
        const auto& w = static_cast<const numeric::ue8m0x4*>(data)[row * row_stride + col * col_stride];
        return numeric::ue8m0_to_float(w.byte(static_cast<int>((along_rows ? i : j) % 4)));
      }
      default:
        return 1.0f;
    }
  }
};

/// Stores the scale of block (i, j). Absent: does nothing. With packed scales the caller writes block 0 of
/// each word first: that clears the word, so that its unused bytes are zero.
struct scale_writer {
  void* data = nullptr;
  dtype type = dtype::none;
  std::int64_t row_stride = 0, col_stride = 0;
  bool along_rows = false;

  scale_writer() = default;
  scale_writer(const tensor& t, bool pack_along_rows)
      : data(t.data),
        type(t.dtype),
        row_stride(t.stride(0)),
        col_stride(t.stride(1)),
        along_rows(pack_along_rows) {}

  KOKKOS_FUNCTION void operator()(std::int64_t i, std::int64_t j, const numeric::scale& s) const {
    switch (type) {
      case dtype::f32:
        static_cast<float*>(data)[i * row_stride + j * col_stride] = s.sf;
        return;
      case dtype::e4m3:
        static_cast<numeric::e4m3*>(data)[i * row_stride + j * col_stride] = numeric::to_e4m3(s.sf);
        return;
      case dtype::ue8m0x4: {
        const std::int64_t row = along_rows ? i / 4 : i, col = along_rows ? j : j / 4;
        auto& w = static_cast<numeric::ue8m0x4*>(data)[row * row_stride + col * col_stride];
        const int byte = static_cast<int>((along_rows ? i : j) % 4);
        if (byte == 0) w.bits = 0;
        w.set_byte(byte, s.exponent);
        return;
      }
      default:
        return;
    }
  }
};

/// From amax to scale, as the format of the codes and the flags of the operation ask.
struct scale_rule {
  float clamp_min, max_q;
  quant::scale_flags flags;
  scale_rule(dtype codes, const quant::scale_flags& f)
      : clamp_min(quant::amax_clamp(codes, f)), max_q(quant::max_code(codes)), flags(f) {}
  KOKKOS_FUNCTION numeric::scale operator()(float amax) const {
    if (flags.e4m3) return numeric::scale_e4m3(amax, clamp_min, max_q);
    return flags.round ? numeric::scale_power_of_two(amax, clamp_min, max_q)
                       : numeric::scale_plain(amax, clamp_min, max_q);
  }
};

/// The part of a matrix that shares one scale: rows [row, row_end) by columns [col, col_end).
struct block {
  std::int64_t row, row_end, col, col_end;
  /// Block (i, j) of a rows x cols matrix; blocks at the far edges are partial.
  KOKKOS_FUNCTION static block at(std::int64_t i, std::int64_t j, std::int64_t block_rows,
                                  std::int64_t block_cols, std::int64_t rows, std::int64_t cols) {
    const std::int64_t row_end = (i + 1) * block_rows, col_end = (j + 1) * block_cols;
    return {i * block_rows, row_end < rows ? row_end : rows, j * block_cols, col_end < cols ? col_end : cols};
  }
  /// f(r, c), row by row: the order in which packed codes are written.
  template <class F>
  KOKKOS_FUNCTION void for_each(const F& f) const {
    for (std::int64_t r = row; r < row_end; ++r)
      for (std::int64_t c = col; c < col_end; ++c) f(r, c);
  }
  /// Largest magnitude of value(r, c).
  template <class F>
  KOKKOS_FUNCTION float amax(const F& value) const {
    float a = 0;
    for_each([&](std::int64_t r, std::int64_t c) { a = numeric::amax_step(a, value(r, c)); });
    return a;
  }
};

/// Eight E5M6 codes of a row, those that hold column j.
struct e5m6_group {
  std::uint16_t codes[8];
  KOKKOS_FUNCTION e5m6_group(const numeric::e5m6x8* row, std::int64_t j) {
    std::uint8_t bytes[12];
    for (int k = 0; k < 12; ++k) bytes[k] = row[j / 8 * 12 + k].bits;
    numeric::unpack_e5m6x8(bytes, codes);
  }
  KOKKOS_FUNCTION void store(numeric::e5m6x8* row, std::int64_t j) const {
    std::uint8_t bytes[12];
    numeric::pack_e5m6x8(codes, bytes);
    for (int k = 0; k < 12; ++k) row[j / 8 * 12 + k].bits = bytes[k];
  }
};

/// Matrix of values that may be packed; reads give fp32 codes without their scale.
template <class T>
struct matrix_reader {
  const T* data;
  std::int64_t row_stride;
  explicit matrix_reader(const tensor& t) : matrix_reader(t, t.stride(0)) {}
  matrix_reader(const tensor& t, std::int64_t stride)
      : data(static_cast<const T*>(t.data)), row_stride(stride) {}
  KOKKOS_FUNCTION float operator()(std::int64_t i, std::int64_t j) const {
    if constexpr (std::is_same_v<T, numeric::e2m1x2>)
      return numeric::e2m1_to_float(
          numeric::unpack_e2m1x2(data[i * row_stride + j / 2], static_cast<int>(j % 2)));
    else if constexpr (std::is_same_v<T, numeric::e5m6x8>)
      return numeric::e5m6_to_float(e5m6_group(data + i * row_stride, j).codes[j % 8]);
    else
      return load(data[i * row_stride + j]);
  }
};

/// Its counterpart: encodes an already scaled value. Packed codes: one thread writes all values of a group
/// (two of e2m1, eight of e5m6), in order.
template <class T>
struct matrix_writer {
  T* data;
  std::int64_t row_stride;
  explicit matrix_writer(const tensor& t) : matrix_writer(t, t.stride(0)) {}
  matrix_writer(const tensor& t, std::int64_t stride) : data(static_cast<T*>(t.data)), row_stride(stride) {}
  KOKKOS_FUNCTION void operator()(std::int64_t i, std::int64_t j, float scaled) const {
    if constexpr (std::is_same_v<T, numeric::e2m1x2>)
      set_code(i, j, numeric::to_e2m1(scaled));
    else if constexpr (std::is_same_v<T, numeric::e5m6x8>)
      set_e5m6(i, j, numeric::to_e5m6(scaled));
    else
      store(data[i * row_stride + j], scaled);
  }
  /// Stochastic rounding with the word r0 of the value's quad.
  KOKKOS_FUNCTION void stochastic(std::int64_t i, std::int64_t j, float scaled, std::uint32_t r0) const {
    if constexpr (std::is_same_v<T, numeric::e2m1x2>)
      set_code(i, j, numeric::stochastic_e2m1(scaled, numeric::sr_slice_e2m1(r0, static_cast<int>(j % 4))));
    else if constexpr (std::is_same_v<T, numeric::e4m3>)
      data[i * row_stride + j] =
          numeric::stochastic_e4m3(scaled, numeric::sr_slice_e4m3(r0, static_cast<int>(j % 4)));
  }

 private:
  KOKKOS_FUNCTION void set_code(std::int64_t i, std::int64_t j, std::uint8_t code) const {
    numeric::e2m1x2& pair = data[i * row_stride + j / 2];
    pair = j % 2 == 0 ? numeric::pack_e2m1x2(code, 0)
                      : numeric::pack_e2m1x2(numeric::unpack_e2m1x2(pair, 0), code);
  }
  KOKKOS_FUNCTION void set_e5m6(std::int64_t i, std::int64_t j, std::uint16_t code) const {
    e5m6_group group(data + i * row_stride, j);
    for (std::int64_t k = j % 8; k < 8; ++k) group.codes[k] = k == j % 8 ? code : 0;
    group.store(data + i * row_stride, j);
  }
};

}  // namespace portile::reference
