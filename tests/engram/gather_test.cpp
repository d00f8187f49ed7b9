#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::gather;

namespace {

gather good(memory& m) {
  gather p;
  p.table = fill(m.make(dtype::bf16, {9, 7}), 1);
  p.index = m.of<std::int32_t>({3, 2}, std::vector<int>{8, 0, -1, 4, 4, 1});
  p.out = m.make(dtype::bf16, {3, 14});
  return p;
}

}  // namespace

TEST_CASE("engram.gather refuses bad problems") {
  expect_refusals<gather>(
      good,
      {
          {"table absent", [](auto& p) { p.table = {}; }, "table = absent: is required"},
          {"dtype of table", [](auto& p) { p.table.dtype = dtype::f16; }, "table.dtype = f16: must be bf16"},
          {"dtype of index", [](auto& p) { p.index.dtype = dtype::f32; }, "index.dtype = f32: must be i32"},
          {"rank of index", [](auto& p) { p.index.rank = 1; }, "index.rank = 1"},
          {"width of out", [](auto& p) { p.out.extents[1] = 13; },
           "out.extents[1] = 13: must be num_indices * embed_dim = 14"},
          {"tokens of out", [](auto& p) { p.out.extents[0] = 2; },
           "out.extents[0] = 2: must be num_tokens = 3"},
          {"stride of table",
           [](auto& p) {
             p.table.strides = {1, 9};
           },
           "the last stride must be 1"},
          {"misaligned", [](auto& p) { p.index.data = static_cast<char*>(p.index.data) + 2; }, "misaligned"},
      });
}

TEST_CASE("engram.gather copies bits, traps bad rows and writes zeros there") {
  memory m;
  gather p = good(m);
  static_cast<numeric::bf16*>(p.table.data)[4 * 7] = {0x7FA1};  // a signalling NaN stays as it is
  queue q{cpu_selector};
  run(q, p);
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t c = 0; c < 2; ++c)
      for (std::int64_t j = 0; j < 7; ++j) {
        const std::int32_t row = at<std::int32_t>(p.index, t, c);
        CHECK(at<numeric::bf16>(p.out, t, c * 7 + j) ==
              (row < 0 ? numeric::bf16{0} : at<numeric::bf16>(p.table, row, j)));
      }
  expect_layout_freedom(p);
  expect_tokens_alone(p);
  for (const std::int32_t wrong : {9, -2, 2147483647, -2147483647 - 1}) {
    at<std::int32_t>(p.index, 1, 1) = wrong;
    expect_trap(p, "must be -1 or a row of the table", 3);
    run(q, p);  // not checked: safe all the same
    for (std::int64_t j = 0; j < 7; ++j) CHECK(at<numeric::bf16>(p.out, 1, 7 + j) == numeric::bf16{0});
  }
  gather empty = p;
  empty.table.extents[0] = 0;
  expect_trap(empty, "must be -1 or a row of the table", 0);
  CHECK(m.guards_intact());
}
