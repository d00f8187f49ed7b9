#include <limits>

#include <portile/kernels/norm/forward_and_per_token_cast.hpp>
#include <portile/kernels/norm/limits.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::norm {
namespace {

constexpr std::int64_t block_m_limit = std::int64_t{1} << 31;

// Rows that mega_moe_sf has for this many tokens: whole blocks, each padded to 128. What no memory holds is
// the largest number.
std::int64_t mega_moe_rows(std::int64_t tokens, std::int64_t block_m) {
  const std::int64_t blocks = numeric::ceil_div(tokens, block_m), rows = numeric::align_up(block_m, 128);
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  return blocks > largest / rows ? largest : blocks * rows;
}

void check_mega_moe(checker& c, const forward_and_per_token_cast& p) {
  const tensor& sf = p.mega_moe_sf;
  if (!c.need(sf.defined() ? p.mega_moe_block_m > 0 : p.mega_moe_block_m == 0, "mega_moe_block_m",
              p.mega_moe_block_m,
              sf.defined() ? "must be positive with mega_moe_sf" : "must be 0 without mega_moe_sf") ||
      !sf.defined() ||
      !c.need(p.mega_moe_block_m < block_m_limit, "mega_moe_block_m", p.mega_moe_block_m,
              "must be below 2^31"))
    return;
  const std::int64_t rows = mega_moe_rows(c.dim("num_tokens"), p.mega_moe_block_m);
  c.need(p.round_sf, "round_sf", p.round_sf,
         "must be set with mega_moe_sf: only powers of two have an exponent byte") &&
      c.need(p.x.rank == 2, "x.rank", p.x.rank, "must be 2 with mega_moe_sf") &&
      c.need_multiple("hidden_size", c.dim("hidden_size"), 128) &&
      c.need(sf.extent(0) >= rows, "mega_moe_sf.extents[0]", sf.extent(0),
             "must be at least ceil(num_tokens, mega_moe_block_m) * align(mega_moe_block_m, 128) = " +
                 std::to_string(rows)) &&
      c.need(sf.extent(0) <= 1 || sf.stride(0) == 1, "mega_moe_sf.strides", sf,
             "must be [1, rows]: it is column-major");
}

}  // namespace

void forward_and_per_token_cast::check(checker& c) const {
  if (!quant::check_format(c, fmt, out) || !check_hidden_size(c, 32) || !check_forward_inputs(c, *this))
    return;
  if (!check_rank(c, "out_sf", out_sf, x) || !check_rank(c, "out_bf16", out_bf16, x)) return;
  if (!c.need(num_per_channels == 32, "num_per_channels", num_per_channels, "must be 32")) return;
  if (quant::check_scales(c, "out_sf", out_sf, quant::flags_of(*this))) check_mega_moe(c, *this);
}

void forward_and_per_token_cast::infer(inference& i) const {
  const std::int64_t tokens = i.dim("num_tokens"), hidden = i.dim("hidden_size");
  const quant::scale_flags flags = quant::flags_of(*this);
  i.out("out", quant::dtype_of_format(fmt, out.defined() ? out.dtype : dtype::e4m3));
  const std::int64_t width = stored_extent(flags.type(), quant::blocks(hidden, num_per_channels)),
                     ld = flags.leading(tokens);
  if (x.rank != 3)
    quant::infer_scales(i, "out_sf", tokens, quant::blocks(hidden, num_per_channels), flags);
  else if (flags.col_major)
    i.out("out_sf", flags.type(), {i.dim("batch"), tokens, width}, {width * ld, 1, ld});
  else
    i.out("out_sf", flags.type(), {i.dim("batch"), tokens, width}, {tokens * width, width, 1});
  if (with_out_bf16) i.out("out_bf16", dtype::bf16);
  if (residual) i.out("residual_out", x.dtype);
  if (with_rstd) i.out("rstd", dtype::f32);
  if (mega_moe_block_m > 0 && mega_moe_block_m < block_m_limit) {
    const std::int64_t rows = mega_moe_rows(tokens, mega_moe_block_m);
    i.out("mega_moe_sf", dtype::ue8m0x4, {rows, hidden / 128}, {1, rows});
  }
}

}  // namespace portile::norm
