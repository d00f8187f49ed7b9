#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::make_offsets;

namespace {

make_offsets good(memory& m) {
  make_offsets p;
  p.vocab_sizes = m.of<std::int32_t>({2, 2, 3}, std::vector<int>{5, 7, 1, 2, 9, 4, 11, 3, 3, 8, 6, 2});
  p.offsets = m.make(dtype::i32, {2, 6});
  return p;
}

}  // namespace

TEST_CASE("engram.make_offsets refuses bad problems") {
  expect_refusals<make_offsets>(
      good, {
                {"absent", [](auto& p) { p.vocab_sizes = {}; }, "vocab_sizes = absent: is required"},
                {"dtype", [](auto& p) { p.vocab_sizes.dtype = dtype::u32; },
                 "vocab_sizes.dtype = u32: must be i32"},
                {"rank", [](auto& p) { p.vocab_sizes.rank = 2; }, "vocab_sizes.rank = 2"},
                {"columns", [](auto& p) { p.offsets.extents[1] = 5; }, "offsets.extents[1] = 5"},
                {"layers", [](auto& p) { p.offsets.extents[0] = 1; },
                 "offsets.extents[0] = 1: must be num_ngram_layers = 2"},
            });
}

TEST_CASE("engram.make_offsets sums the sizes before each table, per layer") {
  memory m;
  make_offsets p = good(m);
  queue q{cpu_selector};
  run(q, p);
  const std::int32_t want[] = {0, 5, 12, 13, 15, 24, 0, 11, 14, 17, 25, 31};
  for (std::int64_t i = 0; i < 12; ++i) CHECK(static_cast<std::int32_t*>(p.offsets.data)[i] == want[i]);
  expect_layout_freedom(p);
  make_offsets none = p;
  none.vocab_sizes.extents[0] = none.offsets.extents[0] = 0;
  CHECK_NOTHROW(run(q, none));
}

TEST_CASE("engram.make_offsets traps sums beyond int32") {
  memory m;
  make_offsets p = good(m);
  for (std::int64_t i : {6, 7, 8}) static_cast<std::int32_t*>(p.vocab_sizes.data)[i] = 1500000000;
  expect_trap(p, "must fit in int32", 8);
  CHECK(static_cast<std::int32_t*>(p.offsets.data)[7] == 1500000000);
  CHECK(static_cast<std::int32_t*>(p.offsets.data)[8] == 2147483647);
  CHECK(m.guards_intact());
}
