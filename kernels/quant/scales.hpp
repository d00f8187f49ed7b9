#pragma once
// Rules on scale factors that the quantising operations share: which flags go together, and what dtype, shape
// and strides `out_sf` then has. Host only.
#include <string>
#include <vector>

#include <portile/core/check.hpp>
#include <portile/core/numeric/integer.hpp>
#include <portile/core/numeric/scale.hpp>

namespace portile::quant {

/// The layout that the boolean attributes of an operation ask for.
struct scale_flags {
  bool col_major = false;  ///< use_tma_aligned_col_major_sf: strides [1, ld], ld a multiple of 16 bytes
  bool round = false;      ///< round_sf: scales are powers of two, rounded up
  bool packed = false;     ///< use_packed_ue8m0: four exponents in an int32
  bool e4m3 = false;       ///< use_e4m3_sf: the scale itself is an e4m3
  bool own_clamp = false;  ///< sf_clamp_min is given and replaces the format's lower bound of amax
  float clamp_min = 0;

  dtype type() const { return packed ? dtype::ue8m0x4 : e4m3 ? dtype::e4m3 : dtype::f32; }
  /// Rows of a column-major buffer.
  std::int64_t leading(std::int64_t rows) const { return numeric::align_up(rows, e4m3 && !packed ? 16 : 4); }
};

inline scale_flags flags_of(const auto& p) {
  scale_flags f;
  if constexpr (requires { p.use_tma_aligned_col_major_sf; }) f.col_major = p.use_tma_aligned_col_major_sf;
  if constexpr (requires { p.round_sf; }) f.round = p.round_sf;
  if constexpr (requires { p.use_packed_ue8m0; }) f.packed = p.use_packed_ue8m0;
  if constexpr (requires { p.use_e4m3_sf; }) f.e4m3 = p.use_e4m3_sf;
  if constexpr (requires { p.sf_clamp_min; }) {
    f.own_clamp = p.sf_clamp_min.has_value();
    f.clamp_min = static_cast<float>(p.sf_clamp_min.value_or(0));
  }
  return f;
}

/// Largest magnitude of a format's codes.
constexpr float max_code(dtype codes) {
  return codes == dtype::e2m1x2   ? numeric::max_e2m1
         : codes == dtype::e5m6x8 ? numeric::max_e5m6
                                  : numeric::max_e4m3;
}
/// Lower bound of amax.
constexpr float amax_clamp(dtype codes, const scale_flags& f) {
  if (f.own_clamp) return f.clamp_min;
  if (codes == dtype::e2m1x2) return f.e4m3 ? numeric::clamp_e2m1_with_e4m3_sf : numeric::clamp_e2m1;
  return f.e4m3 ? numeric::clamp_e4m3_with_e4m3_sf : numeric::clamp_e4m3;
}

/// Name of a format attribute for a dtype of codes: "e4m3", "e2m1", "e5m6", "bf16", "fp32".
constexpr const char* format_name(dtype codes) {
  switch (codes) {
    case dtype::e4m3:
      return "e4m3";
    case dtype::e2m1x2:
      return "e2m1";
    case dtype::e5m6x8:
      return "e5m6";
    case dtype::bf16:
      return "bf16";
    case dtype::f32:
      return "fp32";
    default:
      return "?";
  }
}
/// The dtype that a format attribute names; `otherwise` for the empty one.
constexpr dtype dtype_of_format(std::string_view fmt, dtype otherwise) {
  for (dtype t : {dtype::e4m3, dtype::e2m1x2, dtype::e5m6x8, dtype::bf16, dtype::f32})
    if (fmt == format_name(t)) return t;
  return otherwise;
}
/// `fmt` empty means the dtype of the output; given, it must agree.
inline bool check_format(checker& c, const word& fmt, const tensor& out) {
  return c.need(fmt.empty() || fmt == format_name(out.dtype), "fmt", fmt,
                std::string("must be empty or '") + format_name(out.dtype) + "', the format of out");
}

inline bool check_flags(checker& c, const scale_flags& f) {
  return c.need(!f.packed || f.round, "use_packed_ue8m0", f.packed,
                "needs round_sf: only powers of two have an exponent byte") &&
         c.need(!(f.round && f.e4m3), "use_e4m3_sf", f.e4m3, "excludes round_sf") &&
         c.need(!(f.packed && f.e4m3), "use_e4m3_sf", f.e4m3, "excludes use_packed_ue8m0") &&
         c.need(f.clamp_min >= 0, "sf_clamp_min", double{f.clamp_min}, "must not be negative");
}

/// dtype and strides of a result with these flags; its shape has been checked by its declaration. The last
/// two dimensions are the matrix of scales.
inline bool check_scales(checker& c, const char* name, const tensor& sf, const scale_flags& f) {
  const std::string n = name;
  if (!check_flags(c, f) ||
      !c.need(sf.dtype == f.type(), n + ".dtype", sf.dtype,
              "must be " + std::string(to_string(f.type())) + " with these scale flags"))
    return false;
  const std::int64_t rows = sf.extent(sf.rank - 2), cols = sf.extent(sf.rank - 1);
  const std::int64_t row_stride = sf.stride(sf.rank - 2), col_stride = sf.stride(sf.rank - 1);
  if (sf.numel() == 0) return true;
  if (f.col_major) {
    const std::int64_t unit = f.leading(1);
    return c.need(rows <= 1 || row_stride == 1, n + ".strides", sf,
                  "must be [1, ld]: use_tma_aligned_col_major_sf is set") &&
           c.need(cols <= 1 || (col_stride % unit == 0 && col_stride >= rows), n + ".strides", sf,
                  "its column stride must be a multiple of " + std::to_string(unit) +
                      " (16 bytes) and hold every row");
  }
  return c.need(cols <= 1 || col_stride == 1, n + ".strides", sf,
                "must be row-major: use_tma_aligned_col_major_sf is not set");
}

/// The same as an output of infer: `rows` by `cols` scales before packing.
inline void infer_scales(inference& i, const char* name, std::int64_t rows, std::int64_t cols,
                         const scale_flags& f) {
  const std::int64_t width = stored_extent(f.type(), cols);
  if (f.col_major)
    i.out(name, f.type(), {rows, width}, {1, f.leading(rows)});
  else
    i.out(name, f.type(), {rows, width}, {width, 1});
}

/// Blocks along one side; 0 where the size of a block is not known.
inline std::int64_t blocks(std::int64_t extent, std::int64_t block) {
  return block > 0 ? numeric::ceil_div(extent, block) : 0;
}

/// Sizes of the block operations: any combination of 32 and 128.
inline bool check_block(checker& c, std::int64_t hidden_size, std::int64_t block_rows,
                        std::int64_t block_cols) {
  return c.need_multiple("hidden_size", hidden_size, 64) &&
         c.need_one_of<std::int64_t>("block_rows", block_rows, {32, 128}) &&
         c.need_one_of<std::int64_t>("block_cols", block_cols, {32, 128});
}

/// Sizes of the per-token operations. `whole_row`: one scale for the row is allowed.
inline bool check_group(checker& c, std::int64_t hidden_size, std::int64_t num_per_channels, bool whole_row) {
  return c.need_multiple("hidden_size", hidden_size, 64) &&
         ((whole_row && num_per_channels == hidden_size && hidden_size > 0) ||
          c.need_one_of<std::int64_t>("num_per_channels", num_per_channels, {16, 32, 64, 128}));
}

/// E5M6 has one scale per row.
inline bool check_e5m6(checker& c, std::int64_t hidden_size, std::int64_t num_per_channels) {
  return c.need_multiple("hidden_size", hidden_size, 8) &&
         c.need(num_per_channels == hidden_size, "num_per_channels", num_per_channels,
                "must be hidden_size = " + std::to_string(hidden_size) + ": e5m6 has one scale per row");
}

/// Scales of a quantised input: dtype by dtype, present exactly when the data needs them.
inline bool check_input_scales(checker& c, const tensor& x, const tensor& x_sf, std::int64_t block_rows,
                               std::int64_t block_cols) {
  const bool quantised = x.dtype == dtype::e4m3 || x.dtype == dtype::e2m1x2 || x.dtype == dtype::e5m6x8;
  if (!c.need(quantised == x_sf.defined(), "x_sf", x_sf,
              quantised ? "is required for a quantised x" : "must be absent: x is not quantised"))
    return false;
  if (!quantised)
    return c.need(block_rows == 0, "x_block_rows", block_rows, "must be 0 without x_sf") &&
           c.need(block_cols == 0, "x_block_cols", block_cols, "must be 0 without x_sf");
  return c.need(block_rows > 0, "x_block_rows", block_rows, "must be positive") &&
         c.need(block_cols > 0, "x_block_cols", block_cols, "must be positive");
}

/// Sizes of the operations with one scale per channel and block of tokens.
inline bool check_channel_blocks(checker& c, std::int64_t num_tokens, std::int64_t hidden_size,
                                 std::int64_t num_per_tokens) {
  return c.need_multiple("num_tokens", num_tokens, 128) && c.need_multiple("hidden_size", hidden_size, 64) &&
         c.need_one_of<std::int64_t>("num_per_tokens", num_per_tokens, {32, 128});
}

/// Scales of an input that may be quantised per token: x_sf and num_per_channels exactly with codes.
inline bool check_token_scales(checker& c, const tensor& x, const tensor& x_sf,
                               const std::optional<std::int64_t>& num_per_channels,
                               std::initializer_list<std::int64_t> legal) {
  if (!check_input_scales(c, x, x_sf, x_sf ? 1 : 0, x_sf ? 1 : 0)) return false;
  if (!x_sf)
    return c.need(!num_per_channels, "num_per_channels", num_per_channels,
                  "must be absent: x is not quantised");
  return c.need(num_per_channels.has_value(), "num_per_channels", num_per_channels,
                "is required for a quantised x") &&
         c.need_one_of<std::int64_t>("num_per_channels", *num_per_channels, legal);
}

/// Same number of values along every dimension, whatever the packing.
inline bool check_same_shape(checker& c, const tensor& x, const tensor& out) {
  if (!c.need(out.rank == x.rank, "out.rank", out.rank, "must be that of x, " + std::to_string(x.rank)))
    return false;
  for (int i = 0; i < x.rank; ++i) {
    const bool last = i == x.rank - 1;
    const std::int64_t want =
        last ? stored_extent(out.dtype, value_extent(x.dtype, x.extent(i))) : x.extent(i);
    if (!c.need(out.extent(i) == want, "out.extents[" + std::to_string(i) + "]", out.extent(i),
                "must fit x: " + std::to_string(want)))
      return false;
  }
  return true;
}
inline void infer_same_shape(inference& i, const char* name, dtype type, const tensor& x) {
  std::vector<std::int64_t> e(x.extents.begin(), x.extents.begin() + x.rank);
  if (x.rank > 0) e.back() = stored_extent(type, value_extent(x.dtype, e.back()));
  const extents_t s = contiguous_strides(e);
  i.out(name, type, e, {s.begin(), s.begin() + x.rank});
}

}  // namespace portile::quant
