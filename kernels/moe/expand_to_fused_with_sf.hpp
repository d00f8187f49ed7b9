#pragma once
#include <portile/core/problem.hpp>
#include <portile/kernels/moe/expand.hpp>

namespace portile::moe {

/// Copies each token's quantised row, and its scales, to the rows of the expert-major buffer that its slots
/// name:
///   out[p] = x[t], out_sf[p] = x_sf[t] where token_topk_to_pos[t, j] = p >= 0
/// Rows with pos_to_expert < 0 are zero bytes, whatever names them, and so are rows that no slot names. No
/// position may occur twice. Values and scales move as they are: the unused bytes of a row's last packed word
/// too. A position past the rows is skipped. out_sf has the dtype of x_sf; row-major, or with
/// use_tma_aligned_col_major_sf strides [1, ld], ld a multiple of 4 rows.
struct expand_to_fused_with_sf {
  static constexpr const char* name = "moe.expand_to_fused_with_sf";

  tensor x{};
  tensor x_sf{};
  tensor token_topk_to_pos{};
  tensor pos_to_expert{};
  tensor out{};
  tensor out_sf{};
  std::int64_t num_per_channels = 128;
  bool use_tma_aligned_col_major_sf = false;

  static void describe(description<expand_to_fused_with_sf>& d) {
    using enum dtype;
    using p = expand_to_fused_with_sf;
    d.summary("copy quantised token rows and their scales to their experts' rows");
    d.tolerance("bits");
    d.in("x", &p::x, "num_tokens, hidden_size", movable_types, "values").contiguous();
    d.in("x_sf", &p::x_sf, "num_tokens, ceil(hidden_size, num_per_channels)", {f32, ue8m0x4},
         "scales, packed along the row")
        .contiguous();
    d.in("token_topk_to_pos", &p::token_topk_to_pos, "num_tokens, num_topk", i32,
         "row of each slot, -1 for none")
        .contiguous();
    d.in("pos_to_expert", &p::pos_to_expert, "num_rows", i32, "expert of each row, -1 on padding");
    d.out("out", &p::out, "num_rows, hidden_size", movable_types, "rows of the experts");
    d.out("out_sf", &p::out_sf, "num_rows, ceil(hidden_size, num_per_channels)", {f32, ue8m0x4},
          "their scales")
        .any_strides();
    d.attribute("num_per_channels", &p::num_per_channels, "channels per scale: 32 or 128");
    d.attribute("use_tma_aligned_col_major_sf", &p::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.ignored({"api", "use_packed_ue8m0"});
    d.kept("num_per_channels is 32 or 128");
    d.kept("packed scales need use_tma_aligned_col_major_sf");
    d.kept("x, x_sf and token_topk_to_pos are contiguous");
    d.trap("token_topk_to_pos must be below the number of rows");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
