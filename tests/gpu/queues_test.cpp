#include <thread>

#include "gpu/against_reference.hpp"
#include "support/random.hpp"

using namespace portile;
using namespace portile::test;

namespace {

/// The same work again and again on a queue of its own, with a workspace; true if every result is the
/// reference's.
bool agrees_every_time(unsigned seed, int times) {
  memory m;
  randomness r(seed);
  moe::get_fused_mapping p;
  const std::int64_t tokens = 700 + seed, k = 6, experts = 40;
  p.topk_idx = m.make(dtype::i64, {tokens, k});
  for (std::int64_t i = 0; i < tokens * k; ++i)
    static_cast<std::int64_t*>(p.topk_idx.data)[i] = (i / k * 7 + i % k * 5 + seed) % experts;
  p.num_experts = experts;
  p.alignment = 4;
  const std::int64_t rows = tokens * k + experts * 4;
  p.pos_to_expert = m.make(dtype::i32, {rows});
  p.pos_to_token = m.make(dtype::i32, {rows});
  p.pos_to_token_topk = m.make(dtype::i32, {rows});
  p.token_topk_to_pos = m.make(dtype::i32, {tokens, k});
  p.expert_start = m.make(dtype::i32, {experts});
  p.expert_end = m.make(dtype::i32, {experts});
  p.num_tokens_per_expert = m.make(dtype::i32, {experts});
  queue host{cpu_selector};
  queue mine{gpu()};
  device_copy<moe::get_fused_mapping> copy(mine, p);
  run(host, p, run_options{.implementation = "reference"});
  for (int i = 0; i < times; ++i) {
    run(mine, copy.problem());
    if (copy.download("pos_to_token") != host_bytes(p.pos_to_token) ||
        copy.download("token_topk_to_pos") != host_bytes(p.token_topk_to_pos) ||
        copy.download("expert_end") != host_bytes(p.expert_end))
      return false;
  }
  return true;
}

/// Runs `p` on the GPU at hand with `rows` rows where the host's problem has few: inputs named in `repeated`
/// get stride 0 along the first dimension, so that all rows are the first; outputs are allocated in full.
/// Then each sampled row must be the reference's first.
template <class P>
void expect_many_rows(P few, std::int64_t rows) {
  queue host{cpu_selector};
  run(host, few, run_options{.implementation = "reference"});
  queue q{gpu()};
  P many = few;
  std::vector<void*> owned;
  const op_info& op = get_operation(P::name);
  for (const field_info& f : op.fields) {
    if (f.kind != field_kind::tensor) continue;
    tensor& t = f.tensor_in(&many);
    if (!t.defined()) continue;
    const tensor first = f.tensor_in(&few);
    t.device = q.get_device();
    if (f.role == field_role::in) {
      t.data = malloc_device(first.span() * size_of(t.dtype), q);
      memcpy(q, t.data, first.data, first.span() * size_of(t.dtype));
      if (t.extent(0) == first.extent(0) && t.rank > 1) {
        t.extents[0] = rows;
        t.strides[0] = 0;
      }
    } else {
      t.extents[0] = rows * first.extent(0) / (few.x.extent(0));
      t.data = malloc_device(static_cast<std::size_t>(t.extents[0] * t.strides[0]) * size_of(t.dtype), q);
    }
    owned.push_back(t.data);
  }
  INFO(P::name);
  REQUIRE(check(many).text() == "");
  run(q, many);
  for (const field_info& f : op.fields) {
    if (f.kind != field_kind::tensor || f.role == field_role::in || !f.tensor_in(&many).defined()) continue;
    const tensor &t = f.tensor_in(&many), first = f.tensor_in(&few);
    const std::size_t row_bytes = static_cast<std::size_t>(t.strides[0]) * size_of(t.dtype);
    std::vector<unsigned char> got(row_bytes);
    // Beside 2^31 elements and bytes, 2^32 bytes, and at both ends.
    for (const std::int64_t element :
         {std::int64_t{0}, (std::int64_t{1} << 31) / size_of(t.dtype), std::int64_t{1} << 31,
          std::int64_t{1} << 32, t.extent(0) * t.strides[0] - 1})
      for (std::int64_t row = element / t.strides[0] - 1; row <= element / t.strides[0]; ++row) {
        if (row < 0 || row >= t.extent(0)) continue;
        memcpy(q, got.data(),
               static_cast<const unsigned char*>(t.data) + static_cast<std::size_t>(row) * row_bytes,
               row_bytes);
        q.wait();
        const auto* want = static_cast<const unsigned char*>(first.data);
        INFO(f.name << " row " << row);
        CHECK(std::equal(got.begin(), got.end(), want));
      }
  }
  for (void* p : owned) free(p, q);
}

}  // namespace

TEST_CASE("two threads with a queue each") {
  if (trials(8) < 8) {  // an emulated device runs one launch at a time
    CHECK(agrees_every_time(1, 2));
    return;
  }
  bool first = false, second = false;
  std::thread one([&] { first = agrees_every_time(1, 60); });
  std::thread two([&] { second = agrees_every_time(2, 60); });
  one.join();
  two.join();
  CHECK(first);
  CHECK(second);
}

TEST_CASE("two queues of one thread do not share a workspace") {
  CHECK(agrees_every_time(3, 2));
  CHECK(agrees_every_time(4, 2));
}

TEST_CASE("more than 2^31 elements") {
  if (gpu().info().memory < std::uint64_t{40} << 30) {
    std::printf("left out: the device has less than 40 GiB of memory\n");
    return;
  }
  const std::int64_t width = 512, rows = (std::int64_t{1} << 23) + 256;
  memory m;
  randomness r(5);
  {
    quant::per_token_cast p;
    p.x = m.make(dtype::bf16, {1, width});
    r.fill(p.x);
    p.out = m.make(dtype::e4m3, {1, width});
    p.out_sf = m.make(dtype::f32, {1, width / 128});
    expect_many_rows(p, rows);
  }
  {
    quant::swiglu_forward p;
    p.x = m.make(dtype::bf16, {1, 2 * width});
    r.fill(p.x);
    p.out = m.make(dtype::bf16, {1, width});
    expect_many_rows(p, rows);
  }
  {
    norm::forward p;
    p.x = m.make(dtype::bf16, {1, width});
    r.fill(p.x);
    p.out = m.make(dtype::bf16, {1, width});
    expect_many_rows(p, rows);
  }
  {
    // A block of 128 equal rows has the scales of one.
    quant::per_block_cast p;
    p.x = m.make(dtype::bf16, {128, width}, {0, 1});
    r.fill(p.x);
    p.out = m.make(dtype::e4m3, {128, width});
    p.out_sf = m.make(dtype::f32, {1, width / 128});
    expect_many_rows(p, rows);
  }
}
