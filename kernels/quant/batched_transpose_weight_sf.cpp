#include <portile/core/check.hpp>
#include <portile/core/numeric/integer.hpp>
#include <portile/kernels/quant/batched_transpose_weight_sf.hpp>

namespace portile::quant {
namespace {

struct layout {
  std::vector<std::int64_t> extents, strides;
};

// Words of four exponents for `lines` rows (or columns) of a weight, `along` scales each.
layout packed_layout(const tensor& x_sf, std::int64_t lines, std::int64_t along, bool transposed) {
  const std::int64_t words = numeric::ceil_div(along, 4);
  layout l{{lines, words}, {1, lines}};
  if (transposed) l = {{words, lines}, {lines, 1}};
  if (x_sf.rank == 3) {
    l.extents.insert(l.extents.begin(), x_sf.extent(0));
    l.strides.insert(l.strides.begin(), words * lines);
  }
  return l;
}
layout layout0(const tensor& x_sf, std::int64_t block) {
  return packed_layout(x_sf, x_sf.extent(x_sf.rank - 2) * block, x_sf.extent(x_sf.rank - 1), false);
}
layout layout1(const tensor& x_sf, std::int64_t block, bool transposed) {
  return packed_layout(x_sf, x_sf.extent(x_sf.rank - 1) * block, x_sf.extent(x_sf.rank - 2), transposed);
}

bool check_layout(checker& c, const std::string& name, const tensor& t, const layout& l) {
  const tensor want = make_tensor(nullptr, dtype::ue8m0x4, l.extents, l.strides);
  bool same = t.rank == want.rank;
  for (int i = 0; same && i < t.rank; ++i)
    same = t.extent(i) == want.extent(i) &&
           (t.extent(i) <= 1 || t.numel() == 0 || t.stride(i) == want.stride(i));
  return c.need(same, name, t, "must be " + want.text());
}

}  // namespace

void batched_transpose_weight_sf::check(checker& c) const {
  if (!c.need(out_sf0.size == x_sf.size, "out_sf0.size", out_sf0.size,
              "must be that of x_sf, " + std::to_string(x_sf.size)) ||
      !c.need(out_sf1.size == x_sf.size, "out_sf1.size", out_sf1.size,
              "must be that of x_sf, " + std::to_string(x_sf.size)) ||
      !c.need_one_of<std::int64_t>("block_size", block_size, {32, 128}))
    return;
  for (std::int64_t i = 0; i < x_sf.size && c.ok(); ++i) {
    const tensor& s = x_sf[i];
    const std::string at = "[" + std::to_string(i) + "]", name = "x_sf" + at;
    if (!c.need(s.rank == 2 || s.rank == 3, name + ".rank", s.rank, "must be 2 or 3")) return;
    if (!c.need(s.rank == 2 || s.extent(0) > 0, name + ".extents[0]", s.extent(0),
                "there must be at least one group"))
      return;
    for (int d = s.rank - 2; d < s.rank; ++d)
      if (!c.need(s.extent(d) * block_size % 128 == 0, name + ".extents[" + std::to_string(d) + "]",
                  s.extent(d), "times block_size must be a multiple of 128"))
        return;
    check_layout(c, "out_sf0" + at, out_sf0[i], layout0(s, block_size)) &&
        check_layout(c, "out_sf1" + at, out_sf1[i], layout1(s, block_size, transpose_sf1));
  }
}

void batched_transpose_weight_sf::infer(inference& i) const {
  for (std::int64_t k = 0; k < x_sf.size; ++k) {
    // What check() refuses has no results.
    if (x_sf[k].rank < 2 || x_sf[k].rank > 3 || (block_size != 32 && block_size != 128)) continue;
    const std::string at = "[" + std::to_string(k) + "]";
    const layout l0 = layout0(x_sf[k], block_size), l1 = layout1(x_sf[k], block_size, transpose_sf1);
    i.out("out_sf0" + at, dtype::ue8m0x4, l0.extents, l0.strides);
    i.out("out_sf1" + at, dtype::ue8m0x4, l1.extents, l1.strides);
  }
}

}  // namespace portile::quant
