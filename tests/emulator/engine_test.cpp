// The emulator finds what a device would leave undefined, and computes what a device would.
#include "backends/gpu/reduce.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace portile;

namespace {

struct out_params {
  std::vector<int>* out;
};

/// What running K says; empty when it is fine.
template <class K, int Wave = 32>
std::string problem_of(std::int64_t grid = 1, std::size_t shared_bytes = 1024) {
  std::vector<int> out(1024, -1);
  try {
    emulator::run_grid<K, Wave>(grid, shared_bytes, out_params{&out});
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

struct kernel {
  static constexpr int threads = 128;
  using params = out_params;
};

struct reverse_through_shared : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    int* s = block.template shared<int>();
    s[block.thread()] = block.thread() * 3;
    block.barrier();
    (*p.out)[static_cast<std::size_t>(block.index() * threads + block.thread())] =
        s[threads - 1 - block.thread()];
  }
};
struct wave_sums : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    int v = block.thread();
    for (int m = 1; m < Block::wave_size; m *= 2) v += block.shuffle_xor(v, m);
    const int below = block.shuffle_down(block.thread(), 1);
    const int from_first = block.shuffle(block.thread(), 0);
    const std::uint64_t odd = block.ballot(block.lane() % 2 == 1);
    const auto most = static_cast<int>(block.wave_max(static_cast<std::uint32_t>(block.thread())));
    const bool fine = odd == (Block::wave_size == 64 ? 0xAAAAAAAAAAAAAAAAull : 0xAAAAAAAAull) &&
                      most == from_first + Block::wave_size - 1 &&
                      below == block.thread() + (block.lane() + 1 < Block::wave_size);
    (*p.out)[static_cast<std::size_t>(block.thread())] = fine ? v : -2;
  }
};
/// Every block adds its sum to a total; the block that comes last hands the total out.
struct sums_of_blocks : kernel {
  struct params {
    std::uint64_t* total;
    std::uint32_t* ticket;
    std::vector<int>* out;
  };
  template <class Block>
  static void run(Block& block, const params& p) {
    auto* scratch = block.template shared<std::uint64_t>();
    auto* flag = block.template shared<std::uint32_t>(512);
    const auto mine = static_cast<std::uint64_t>(block.thread() + 1);
    const std::uint64_t sum = gpu::reduce_block(block, mine, gpu::plus{}, scratch);
    if (block.thread() == 0) block.atomic_add(p.total, sum);
    const std::uint64_t below = gpu::inclusive_sum_wave(block, std::uint64_t{1});
    if (!gpu::last_block(block, p.ticket, flag)) return;
    (*p.out)[static_cast<std::size_t>(block.thread())] = static_cast<int>(*p.total + below);
  }
};
/// sum = 1 + a * b with a(i, k) = 3i - k and b(k, j) = k + 2j; the first wave leaves it in `out`.
struct matrix_product : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    const int g = block.lane() / 4, q = block.lane() % 4;
    const auto a = [](int i, int k) { return static_cast<float>(3 * i - k); };
    const auto b = [](int k, int j) { return static_cast<float>(k + 2 * j); };
    float sum[4] = {1, 1, 1, 1};
    if constexpr (Block::has_mma_tf32)
      block.mma_tf32_16x8x8(sum, {a(g, q), a(g + 8, q), a(g, q + 4), a(g + 8, q + 4)},
                            {b(q, g), b(q + 4, g)});
    if (block.wave() > 0) return;
    for (int i = 0; i < 4; ++i)
      (*p.out)[static_cast<std::size_t>((g + i / 2 * 8) * 8 + 2 * q + i % 2)] = static_cast<int>(sum[i]);
  }
};
struct factor_with_low_bits : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    float sum[4] = {};
    if constexpr (Block::has_mma_tf32)
      block.mma_tf32_16x8x8(sum, {1.0f, 1.0f, 1.0f, 1.0f}, {1.0f, 0x1.001p0f});
  }
};
struct divergent_barrier : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    if (block.thread() < 96) block.barrier();
  }
};
struct shuffle_with_ended_lane : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    if (block.lane() == 5) return;
    block.shuffle(1.0f, 5);
  }
};
struct shuffles_at_two_places : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    if (block.lane() < 16)
      block.shuffle(1, 0);
    else
      block.shuffle(2, 0);
  }
};
struct barrier_against_shuffle : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    if (block.lane() == 0)
      block.barrier();
    else
      block.shuffle(1, 0);
  }
};
struct beyond_shared : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    if (block.thread() == 7) block.template shared<int>()[256] = 1;
  }
};
struct asks_beyond_shared : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    block.template shared<int>(1024);
  }
};
struct misaligned_load : kernel {
  template <class Block>
  static void run(Block& block, const params&) {
    struct alignas(16) four {
      int v[4];
    };
    emulator::aligned_load<four>(block.template shared<char>() + 4);
  }
};
/// A race: each thread reads its neighbour's word without a barrier.
struct missing_barrier : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    int* s = block.template shared<int>();
    s[block.thread()] = block.thread();
    (*p.out)[static_cast<std::size_t>(block.thread())] = s[(block.thread() + 1) % threads];
  }
};

/// The next lane's word, in one wave.
struct neighbour_without_wave_barrier : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    int* s = block.template shared<int>();
    s[block.thread()] = block.thread();
    (*p.out)[static_cast<std::size_t>(block.thread())] = s[block.thread() ^ 1];
  }
};
struct neighbour_behind_wave_barrier : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    int* s = block.template shared<int>();
    s[block.thread()] = block.thread();
    block.wave_barrier();
    const int got = s[block.thread() ^ 1];
    block.wave_barrier();
    s[block.thread()] = 0;
    (*p.out)[static_cast<std::size_t>(block.thread())] = got;
  }
};
struct neighbour_of_other_wave : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    int* s = block.template shared<int>();
    s[block.thread()] = block.thread();
    block.wave_barrier();
    (*p.out)[static_cast<std::size_t>(block.thread())] = s[block.thread() ^ 64];
  }
};
/// The barrier between a round's reads and the next round's writes is missing.
struct write_after_read : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    int* s = block.template shared<int>();
    s[block.thread()] = block.thread();
    block.barrier();
    (*p.out)[static_cast<std::size_t>(block.thread())] = s[threads - 1 - block.thread()];
    s[block.thread()] = 1;
  }
};
struct atomic_counter : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    block.atomic_add(reinterpret_cast<std::uint32_t*>(p.out->data()), 1u);
  }
};
struct one_block_writes : kernel {
  template <class Block>
  static void run(Block& block, const params& p) {
    if (block.thread() == 3) (*p.out)[0] = 1;
  }
};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("emulator: barriers and shared memory") {
  std::vector<int> out(256, -1);
  emulator::run_grid<reverse_through_shared, 32>(2, 512, {&out});
  for (int i = 0; i < 256; ++i) REQUIRE(out[static_cast<std::size_t>(i)] == (127 - i % 128) * 3);
}

TEST_CASE("emulator: what lanes exchange, for both wave sizes") {
  std::vector<int> out(128, -1);
  emulator::run_grid<wave_sums, 32>(1, 0, {&out});
  for (int i = 0; i < 128; ++i) REQUIRE(out[static_cast<std::size_t>(i)] == i / 32 * 32 * 32 + 496);
  emulator::run_grid<wave_sums, 64>(1, 0, {&out});
  for (int i = 0; i < 128; ++i) REQUIRE(out[static_cast<std::size_t>(i)] == i / 64 * 64 * 64 + 2016);
}

TEST_CASE("emulator: a product of matrices that lie across a wave") {
  std::vector<int> out(128, -1);
  emulator::run_grid<matrix_product, 32>(1, 0, {&out});
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      int expected = 1;
      for (int k = 0; k < 8; ++k) expected += (3 * i - k) * (k + 2 * j);
      REQUIRE(out[static_cast<std::size_t>(i * 8 + j)] == expected);
    }
  CHECK(contains(problem_of<factor_with_low_bits>(), "no tf32"));
}

TEST_CASE("emulator: block sums, the last block of a launch, running sums") {
  std::vector<int> out(128, -1);
  std::uint64_t total = 0;
  std::uint32_t ticket = 0;
  emulator::run_grid<sums_of_blocks, 32>(3, 1024, {&total, &ticket, &out});
  for (int i = 0; i < 128; ++i) REQUIRE(out[static_cast<std::size_t>(i)] == 3 * 8256 + i % 32 + 1);
  CHECK(ticket == 0);
  total = 0;
  emulator::run_grid<sums_of_blocks, 64>(2, 1024, {&total, &ticket, &out});
  for (int i = 0; i < 128; ++i) REQUIRE(out[static_cast<std::size_t>(i)] == 2 * 8256 + i % 64 + 1);
}

TEST_CASE("emulator: undefined behaviour is an error with its place") {
  std::string text = problem_of<divergent_barrier>();
  INFO(text);
  CHECK((contains(text, "thread 0 waits in a barrier at engine_test.cpp:") &&
         contains(text, "thread 96 has ended")));
  text = problem_of<shuffle_with_ended_lane>();
  CHECK((contains(text, "thread 0 waits in a shuffle at engine_test.cpp:") &&
         contains(text, "thread 5 has ended")));
  text = problem_of<shuffles_at_two_places>();
  CHECK((contains(text, "thread 0 waits in a shuffle") && contains(text, "thread 16 waits in a shuffle")));
  text = problem_of<shuffle_with_ended_lane, 64>();
  CHECK(contains(text, "thread 5 has ended"));
  text = problem_of<barrier_against_shuffle>();
  CHECK((contains(text, "thread 0 waits in a barrier") && contains(text, "thread 1 waits in a shuffle")));
  CHECK(contains(problem_of<beyond_shared>(), "written outside of what the launch asked for"));
  CHECK(contains(problem_of<asks_beyond_shared>(), "beyond what the launch asked for"));
  CHECK(contains(problem_of<misaligned_load>(), "misaligned vector load"));
  CHECK(problem_of<reverse_through_shared>().empty());
}

TEST_CASE("emulator: a missing barrier shows in the result, and is a race") {
  if (emulator::races::enabled()) {
    const std::string text = problem_of<missing_barrier>();
    INFO(text);
    CHECK(contains(text, "race: thread "));
    CHECK(contains(text, "of shared memory, with no barrier between"));
    return;
  }
  std::vector<int> out(128, -1);
  emulator::run_grid<missing_barrier, 32>(1, 512, {&out});
  int wrong = 0;
  for (int i = 0; i < 128; ++i) wrong += out[static_cast<std::size_t>(i)] != (i + 1) % 128;
  CHECK(wrong > 100);
}

TEST_CASE("emulator: what orders accesses, and what does not") {
  if (!emulator::races::enabled()) return;
  CHECK(contains(problem_of<neighbour_without_wave_barrier>(), "race: "));
  CHECK(problem_of<neighbour_behind_wave_barrier>().empty());
  CHECK(contains(problem_of<neighbour_of_other_wave>(), "race: "));
  CHECK(contains(problem_of<write_after_read>(), "race: "));
  CHECK(problem_of<atomic_counter>(4).empty());
  CHECK(problem_of<one_block_writes>(1).empty());
  const std::string text = problem_of<one_block_writes>(2);
  INFO(text);
  CHECK(contains(text, "thread 3 of block 1 writes what thread 3 of block 0 wrote"));
}
