#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::fused_weight;

namespace {

fused_weight good(memory& m) {
  fused_weight p;
  p.weight_hidden = fill(m.make(dtype::bf16, {3, 7}), 1);
  p.weight_embed = fill(m.make(dtype::bf16, {3, 7}), 2);
  p.weight_fused = m.make(dtype::f32, {3, 7});
  return p;
}

}  // namespace

TEST_CASE("engram.fused_weight refuses bad problems") {
  expect_refusals<fused_weight>(
      good,
      {
          {"weight_embed absent", [](auto& p) { p.weight_embed = {}; }, "weight_embed = absent: is required"},
          {"dtype", [](auto& p) { p.weight_hidden.dtype = dtype::f16; },
           "weight_hidden.dtype = f16: must be bf16"},
          {"dtype of the result", [](auto& p) { p.weight_fused.dtype = dtype::i32; },
           "weight_fused.dtype = i32: must be f32"},
          {"shape", [](auto& p) { p.weight_embed.extents[1] = 6; },
           "weight_embed.extents[1] = 6: must be hidden_size = 7"},
          {"rank", [](auto& p) { p.weight_fused.rank = 1; }, "weight_fused.rank = 1"},
      });
}

TEST_CASE("engram.fused_weight is the rounded product, subnormals included") {
  memory m;
  fused_weight p = good(m);
  expect_layout_freedom(p);
  fused_weight all;
  all.weight_hidden = m.make(dtype::bf16, {1, 65536});
  all.weight_embed = m.make(dtype::bf16, {1, 65536});
  all.weight_fused = m.make(dtype::f32, {1, 65536});
  for (const std::uint16_t other : {0x0001, 0x0080, 0x3F80, 0xBFC1, 0x1FFF, 0x7F7F, 0x8000}) {
    for (std::int64_t i = 0; i < 65536; ++i) {
      at<numeric::bf16>(all.weight_hidden, 0, i) = {static_cast<std::uint16_t>(i)};
      at<numeric::bf16>(all.weight_embed, 0, i) = {other};
    }
    queue q{cpu_selector};
    run(q, all);
    for (std::int64_t i = 0; i < 65536; ++i) {
      const double exact = value(all.weight_hidden, i) * value(all.weight_embed, i);
      const float got = at<float>(all.weight_fused, 0, i);
      if (std::isnan(exact))
        CHECK(std::isnan(got));
      else if (got != static_cast<float>(exact) || std::signbit(got) != std::signbit(exact))
        FAIL("element " << i << ": " << got << ", not " << exact);
    }
  }
  CHECK(m.guards_intact());
}
