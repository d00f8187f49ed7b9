#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::hash;

namespace {

// 5 tokens, 3-grams, 2 layers, 4 tables per n-gram size; ids and multipliers over their whole range.
hash good(memory& m) {
  std::mt19937_64 rng(1);
  hash p;
  p.ngram_token_ids = m.make(dtype::i32, {5, 3});
  p.multipliers = m.make(dtype::i64, {2, 3});
  p.vocab_sizes = m.make(dtype::i32, {2, 2, 4});
  p.offsets = m.make(dtype::i32, {2, 8});
  p.out = m.make(dtype::i32, {2, 5, 8});
  for (std::int64_t i = 0; i < 15; ++i)
    static_cast<std::int32_t*>(p.ngram_token_ids.data)[i] = static_cast<std::int32_t>(rng());
  for (std::int64_t i = 0; i < 6; ++i)
    static_cast<std::int64_t*>(p.multipliers.data)[i] = static_cast<std::int64_t>(rng());
  for (std::int64_t i = 0; i < 16; ++i) {
    static_cast<std::int32_t*>(p.vocab_sizes.data)[i] = static_cast<std::int32_t>(1 + rng() % 1000000);
    static_cast<std::int32_t*>(p.offsets.data)[i] = static_cast<std::int32_t>(rng() % 1000000);
  }
  return p;
}

}  // namespace

TEST_CASE("engram.hash refuses bad problems") {
  expect_refusals<hash>(
      good,
      {
          {"ids absent", [](auto& p) { p.ngram_token_ids = {}; }, "ngram_token_ids = absent: is required"},
          {"dtype of ids", [](auto& p) { p.ngram_token_ids.dtype = dtype::u32; },
           "ngram_token_ids.dtype = u32: must be i32"},
          {"dtype of multipliers", [](auto& p) { p.multipliers.dtype = dtype::f64; }, "multipliers.dtype"},
          {"rank of vocab_sizes", [](auto& p) { p.vocab_sizes.rank = 2; }, "vocab_sizes.rank = 2"},
          {"n-gram size", [](auto& p) { p.multipliers.extents[1] = 2; }, "multipliers.extents[1] = 2"},
          {"layers", [](auto& p) { p.offsets.extents[0] = 1; },
           "offsets.extents[0] = 1: must be num_ngram_layers = 2"},
          {"columns", [](auto& p) { p.offsets.extents[1] = 7; }, "offsets.extents[1] = 7"},
          {"shape of out", [](auto& p) { p.out.extents[1] = 4; },
           "out.extents[1] = 4: must be num_tokens = 5"},
          {"n = 0", [](auto& p) { p.ngram_token_ids.extents[1] = p.multipliers.extents[1] = 0; },
           "max_ngram_size"},
          {"mask length", [](auto& p) { p.image_token_mask = make_tensor(p.out.data, dtype::boolean, {4}); },
           "image_token_mask"},
          {"out overlaps itself", [](auto& p) { p.out.strides[0] = 0; }, "must not overlap itself"},
      });
}

TEST_CASE("engram.hash traps sizes below 1 and sums beyond int32") {
  for (const std::int32_t size : {0, -1, -7}) {
    memory m;
    hash p = good(m);
    static_cast<std::int32_t*>(p.vocab_sizes.data)[6] = size;  // layer 0, second n-gram size, table 2
    expect_trap(p, "must be at least 1", 6);
    queue q{cpu_selector};
    run(q, p);
    for (std::int64_t t = 0; t < 5; ++t) CHECK(static_cast<std::int32_t*>(p.out.data)[t * 8 + 6] == -1);
    CHECK(static_cast<std::int32_t*>(p.out.data)[7] != -1);
  }
  memory m;
  hash p = good(m);
  for (std::int64_t i = 0; i < 15; ++i) static_cast<std::int32_t*>(p.ngram_token_ids.data)[i] = 1;
  for (std::int64_t i = 0; i < 6; ++i) static_cast<std::int64_t*>(p.multipliers.data)[i] = i % 3 == 0 ? 8 : 0;
  static_cast<std::int32_t*>(p.vocab_sizes.data)[9] = 100;
  static_cast<std::int32_t*>(p.offsets.data)[9] = 2147483640;  // + 8: one too many
  expect_trap(p, "must fit in int32", 5 * 8 + 1);
  CHECK(static_cast<std::int32_t*>(p.out.data)[41] == -1);
  static_cast<std::int32_t*>(p.offsets.data)[9] = 2147483639;
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, p);
  CHECK_NOTHROW(q.wait());
  CHECK(static_cast<std::int32_t*>(p.out.data)[41] == 2147483647);
}

TEST_CASE("engram.hash wraps, floors and masks") {
  memory m;
  hash p = good(m);
  queue q{cpu_selector};
  run(q, p);
  const auto* ids = static_cast<const std::int32_t*>(p.ngram_token_ids.data);
  const auto* factors = static_cast<const std::int64_t*>(p.multipliers.data);
  bool negative = false;
  for (std::int64_t l = 0; l < 2; ++l)
    for (std::int64_t t = 0; t < 5; ++t) {
      std::int64_t h = 0;
      for (std::int64_t n = 0; n < 3; ++n) {
        // The low 64 bits of the exact product.
        h ^= static_cast<std::int64_t>(static_cast<__int128>(ids[t * 3 + n]) * factors[l * 3 + n]);
        negative = negative || h < 0;
        for (std::int64_t e = 0; n > 0 && e < 4; ++e) {
          const std::int64_t column = (n - 1) * 4 + e,
                             size = static_cast<std::int32_t*>(p.vocab_sizes.data)[l * 8 + column];
          const std::int64_t row =
              ((h % size) + size) % size + static_cast<std::int32_t*>(p.offsets.data)[l * 8 + column];
          CHECK(static_cast<std::int32_t*>(p.out.data)[(l * 5 + t) * 8 + column] == row);
        }
      }
    }
  CHECK(negative);

  hash masked = p;
  masked.image_token_mask = m.of<bool>({5}, std::vector<int>{0, 1, 0, 1, 0});
  masked.out = m.make(dtype::i32, {2, 5, 8});
  run(q, masked);
  for (std::int64_t l = 0; l < 2; ++l)
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t j = 0; j < 8; ++j) {
        const std::int64_t i = (l * 5 + t) * 8 + j;
        CHECK(static_cast<std::int32_t*>(masked.out.data)[i] ==
              (t % 2 ? -1 : static_cast<std::int32_t*>(p.out.data)[i]));
      }
  expect_layout_freedom(masked);
  expect_tokens_alone(masked);
}

TEST_CASE("engram.hash of unigrams has no columns") {
  memory m;
  hash p;
  p.ngram_token_ids = m.of<std::int32_t>({2, 1}, std::vector<int>{1, 2});
  p.multipliers = m.of<std::int64_t>({1, 1}, std::vector<int>{3});
  p.vocab_sizes = m.make(dtype::i32, {1, 0, 4});
  p.offsets = m.make(dtype::i32, {1, 0});
  p.out = m.make(dtype::i32, {1, 2, 0});
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, p));
  CHECK(m.guards_intact());
}
