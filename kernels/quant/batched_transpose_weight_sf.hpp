#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Scales of weights, one per block of block_size x block_size, as packed exponents per row and per column,
/// for a list of weights. With e the exponent fields of x_sf [..., n / block_size, k / block_size], byte j of
/// a word:
///   out_sf0 [..., n, p]: e[r / block_size, 4 p + j], column-major, strides [p0 n, 1, n] with p0 = ceil(k /
///   block_size / 4) out_sf1 [..., k, p]: e[4 p + j, q / block_size], column-major, strides [p1 k, 1, k] with
///   p1 = ceil(n / block_size / 4);
///           with transpose_sf1 seen as [..., p1, k], contiguous (the same memory)
/// Bytes past the end are zero. A scale that is no power of two (0 and +Inf pass) is bad data; its exponent
/// field is taken.
struct batched_transpose_weight_sf {
  static constexpr const char* name = "quant.batched_transpose_weight_sf";

  tensor_list x_sf{};
  tensor_list out_sf0{};
  tensor_list out_sf1{};
  std::int64_t block_size = 128;
  bool transpose_sf1 = false;

  static void describe(description<batched_transpose_weight_sf>& d) {
    using enum dtype;
    using op = batched_transpose_weight_sf;
    d.summary("block scales of weights as packed exponents per row and per column");
    d.tolerance("bits");
    d.list(field_role::in, "x_sf", &op::x_sf, "...", f32,
           "[n / block_size, k / block_size] or with a leading group dimension")
        .contiguous();
    d.list(field_role::out, "out_sf0", &op::out_sf0, "...", ue8m0x4,
           "exponents per row of the weight, column-major")
        .any_strides();
    d.list(field_role::out, "out_sf1", &op::out_sf1, "...", ue8m0x4, "exponents per column of the weight")
        .any_strides();
    d.attribute("block_size", &op::block_size, "rows and columns per scale: 32 or 128");
    d.attribute("transpose_sf1", &op::transpose_sf1, "out_sf1 is [..., p1, k] instead of [..., k, p1]");
    d.ignored({"api"});
    d.kept("block_size is 32 or 128");
    d.kept("n and k are multiples of 128; there is at least one group");
    d.kept("out_sf0 and out_sf1 have exactly the strides above");
    d.lifted("results are 32-byte aligned");
    d.trap("x_sf: must be powers of two, with sign and mantissa bits zero");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
