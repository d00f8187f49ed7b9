#include "gpu/against_reference.hpp"

#include <cmath>

#include "support/random.hpp"

using namespace portile;
using namespace portile::test;
using gemm::nt;

namespace {

std::string text_of(const nt& p) {
  std::string s;
  for (const field_info& f : get_operation(nt::name).fields)
    s += f.name + " = " + (f.kind == field_kind::tensor ? f.tensor_in(&p).text() : f.attribute_text(&p)) +
         "; ";
  return s;
}

nt random_problem(memory& m, randomness& r) {
  nt p;
  const dtype a = r.pick({dtype::bf16, dtype::f32, dtype::e4m3, dtype::e4m3});
  const dtype b = a == dtype::e4m3 ? r.pick({dtype::e4m3, dtype::e2m1x2}) : a;
  const std::int64_t rows = r.pick<std::int64_t>({0, 1, 2, 7, 33, 127, 128, 129, 150}),
                     cols = r.pick<std::int64_t>({1, 2, 5, 31, 64, 127, 128, 140});
  std::int64_t k =
      r.pick<std::int64_t>({0, 1, 3, 8, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 129, 160, 300});
  if (b == dtype::e2m1x2) k = k / 2 * 2;
  p.a = r.matrix(m, a, rows, k);
  p.b = r.matrix(m, b, cols, k);
  r.fill(p.a, true);
  r.fill(p.b, true);
  if (a == dtype::e4m3) {
    const auto scales = [&](std::int64_t n, std::int64_t w) {
      const dtype t = r.pick({dtype::f32, dtype::ue8m0x4});
      const std::int64_t width = stored_extent(t, w);
      tensor sf = r.one_in(2)
                      ? m.make(t, {n, width})
                      : m.make(t, {n, width}, {1, numeric::align_up(std::max<std::int64_t>(n, 1), 4)});
      r.fill_scales(sf);
      return sf;
    };
    p.a_sf = scales(rows, numeric::ceil_div(k, 128));
    p.b_sf = b == dtype::e2m1x2 ? scales(cols, numeric::ceil_div(k, 32))
                                : scales(numeric::ceil_div(cols, 128), numeric::ceil_div(k, 128));
  }
  p.out = r.matrix(m, r.pick({dtype::f32, dtype::bf16}), rows, cols);
  p.accumulate = r.one_in(2);
  if (p.accumulate) r.fill(p.out, true);
  if (r.one_in(4)) p.tf32_rounding = "truncate";
  return p;
}

/// The same with magnitudes: its result bounds what rounding can do.
nt magnitudes(memory& m, const nt& p) {
  nt q = p;
  const auto positive = [&](tensor& t) {
    tensor fresh = m.make(t.dtype, std::span<const std::int64_t>(t.extents).first(2),
                          std::span<const std::int64_t>(t.strides).first(2));
    const std::int64_t bytes = t.span() * size_of(t.dtype);
    if (bytes) std::memcpy(fresh.data, t.data, static_cast<std::size_t>(bytes));
    auto* c = static_cast<std::uint8_t*>(fresh.data);
    for (std::int64_t i = 0; i < bytes; ++i) {
      if (t.dtype == dtype::e2m1x2)
        c[i] &= 0x77;
      else if ((i + 1) % size_of(t.dtype) == 0)
        c[i] &= 0x7F;  // the byte with the sign
    }
    t = fresh;
  };
  positive(q.a);
  positive(q.b);
  if (p.accumulate)
    positive(q.out);
  else
    q.out = m.make(dtype::f32, {p.out.extent(0), p.out.extent(1)});
  return q;
}

double value(const tensor& t, const unsigned char* bytes, std::int64_t i) {
  return t.dtype == dtype::f32 ? double{reinterpret_cast<const float*>(bytes)[i]}
                               : double{numeric::to_float(reinterpret_cast<const numeric::bf16*>(bytes)[i])};
}

}  // namespace

TEST_CASE("gemm.nt: random problems stay within the bound of the reference's result") {
  queue host{cpu_selector};
  for (unsigned seed = 1; seed <= trials(60); ++seed) {
    memory m;
    randomness r(seed);
    const nt p = random_problem(m, r);
    INFO("seed " << seed << ": " << text_of(p));
    REQUIRE(check(p).text() == "");
    const nt bound = magnitudes(m, p);
    run(host, bound, run_options{.implementation = "reference"});
    const std::int64_t k = p.a.dtype == dtype::e4m3 ? 0 : p.a.extent(1);
    const double share = p.a.dtype == dtype::e4m3 ? 0x1p-11 : static_cast<double>(k + 4) * 0x1p-24;
    const double rounding = p.out.dtype == dtype::bf16 ? 0x1p-7 : 0x1p-23;

    expect_as_reference(p, [&](const std::string&, const bytes& expected, const bytes& got) {
      std::vector<bool> element(expected.size());
      for (std::int64_t i = 0; i < p.out.extent(0); ++i)
        for (std::int64_t j = 0; j < p.out.extent(1); ++j) {
          const std::int64_t at = i * p.out.stride(0) + j, size = size_of(p.out.dtype);
          for (std::int64_t b = 0; b < size; ++b) element[static_cast<std::size_t>(at * size + b)] = true;
          const double e = value(p.out, expected.data(), at), g = value(p.out, got.data(), at);
          const double s = value(bound.out, static_cast<const unsigned char*>(bound.out.data),
                                 i * bound.out.stride(0) + j);
          if (e == g) continue;
          INFO("row " << i << " column " << j << ": expected " << e << ", got " << g << ", sum of magnitudes "
                      << s);
          if (!(std::abs(e - g) <= 1.01 * share * s + rounding * std::abs(e))) {
            CHECK(e == g);
            return false;
          }
        }
      for (std::size_t i = 0; i < expected.size(); ++i)
        if (!element[i] && expected[i] != got[i]) {
          FAIL_CHECK("a gap between rows was written, at byte " << i);
          return false;
        }
      return true;
    });
    CHECK(m.guards_intact());
  }
}
