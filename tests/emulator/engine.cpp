#include "tests/emulator/engine.hpp"

#include <cstdlib>
#include <deque>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/emulator/fiber.hpp"
#include "tests/emulator/matrix.hpp"

namespace portile::emulator {

namespace {

enum class waiting { no, barrier, wave, ended };  // wave: an exchange, or a wave_barrier

std::string text_of(site s) {
  const std::string file = s.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(s.line());
}

constexpr unsigned char poison = 0xA5, guard = 0x5A;
constexpr std::size_t band = 256;
thread_local const thread_view* running = nullptr;

}  // namespace

const thread_view& running_thread() { return *running; }

struct lane_state {
  waiting state = waiting::no;
  site where = site::current();
  bool orders = false;  ///< waits in a wave_barrier
  int turn = 0;  ///< parity of the lane's exchanges: two buffers, because a lane may be one exchange ahead
};

struct block_run {
  std::int64_t index = 0, grid = 0;
  int threads = 0, wave = 0;
  std::size_t shared_bytes = 0;
  std::vector<unsigned char> shared;
  std::vector<lane_state> lanes;
  std::vector<thread_view> views;
  std::vector<std::uint64_t> slots[2];
  std::deque<fiber> fibers;
  body run = nullptr;
  const void* params = nullptr;
  std::exception_ptr error;

  unsigned char* shared_start() {
    const auto at = reinterpret_cast<std::uintptr_t>(shared.data()) + band;
    return shared.data() + band + (16 - at % 16) % 16;
  }
  void wait(int thread, waiting what, site where) {
    lanes[static_cast<std::size_t>(thread)].state = what;
    lanes[static_cast<std::size_t>(thread)].where = where;
    fibers[static_cast<std::size_t>(thread)].suspend();
  }
  void run_block(const std::vector<int>& order);
  bool release_waiters();
  [[noreturn]] void report_stuck() const;
};

void wait_barrier(const thread_view& t, site where) { t.run->wait(t.thread, waiting::barrier, where); }

const std::uint64_t* exchange(const thread_view& t, std::uint64_t mine, site where) {
  lane_state& lane = t.run->lanes[static_cast<std::size_t>(t.thread)];
  std::vector<std::uint64_t>& slots = t.run->slots[lane.turn];
  lane.turn ^= 1;
  slots[static_cast<std::size_t>(t.thread)] = mine;
  t.run->wait(t.thread, waiting::wave, where);
  return slots.data() + t.thread / t.run->wave * t.run->wave;
}

void wait_wave(const thread_view& t, site where) {
  t.run->lanes[static_cast<std::size_t>(t.thread)].orders = true;
  exchange(t, 0, where);
}

void* shared_memory(const thread_view& t, std::size_t offset, std::size_t size) {
  if (offset % 16 != 0) fail("shared memory: the offset is no multiple of 16");
  if (offset + size > t.run->shared_bytes) fail("shared memory: beyond what the launch asked for");
  return t.run->shared_start() + offset;
}
std::int64_t block_index(const thread_view& t) { return t.run->index; }
std::int64_t grid_size(const thread_view& t) { return t.run->grid; }
void fail(const char* text) { throw std::runtime_error(std::string("emulator: ") + text); }

void block_run::report_stuck() const {
  // Some threads wait for others that ended, or that wait for something else.
  std::string text = "emulator: block " + std::to_string(index) + ": ";
  for (std::size_t first = 0; first < lanes.size(); ++first) {
    if (lanes[first].state == waiting::ended) continue;
    const bool wave_op = lanes[first].state == waiting::wave;
    text += "thread " + std::to_string(first) + " waits in a " + (wave_op ? "shuffle" : "barrier") + " at " +
            text_of(lanes[first].where);
    const std::size_t from =
        wave_op ? first / static_cast<std::size_t>(wave) * static_cast<std::size_t>(wave) : 0;
    const std::size_t to = wave_op ? from + static_cast<std::size_t>(wave) : lanes.size();
    for (std::size_t i = from; i < to; ++i) {
      const bool same = lanes[i].state == lanes[first].state &&
                        (!wave_op || lanes[i].where.line() == lanes[first].where.line());
      if (same) continue;
      text += ", thread " + std::to_string(i) + " ";
      text += lanes[i].state == waiting::ended
                  ? "has ended"
                  : std::string("waits in a ") + (lanes[i].state == waiting::wave ? "shuffle" : "barrier") +
                        " at " + text_of(lanes[i].where);
      break;
    }
    break;
  }
  throw std::runtime_error(text);
}

// Lets complete waves and a complete block go on; true when some thread may run.
bool block_run::release_waiters() {
  bool released = false;
  int at_barrier = 0;
  for (int w = 0; w < threads; w += wave) {
    lane_state* first = &lanes[static_cast<std::size_t>(w)];
    int exchanging = 0;
    for (int l = 0; l < wave; ++l) {
      const bool same_place = first[l].where.line() == first->where.line() &&
                              std::strcmp(first[l].where.file_name(), first->where.file_name()) == 0;
      exchanging += first[l].state == waiting::wave && same_place && first[l].turn == first->turn;
      at_barrier += first[l].state == waiting::barrier;
    }
    if (exchanging != wave) continue;
    if (first->orders && races::enabled()) races::wave_barrier(w / wave);
    for (int l = 0; l < wave; ++l) {
      first[l].state = waiting::no;
      first[l].orders = false;
    }
    released = true;
  }
  if (at_barrier == threads) {
    if (races::enabled()) races::barrier();
    for (lane_state& l : lanes) l.state = waiting::no;
    released = true;
  }
  return released;
}

void block_run::run_block(const std::vector<int>& order) {
  shared.assign(shared_bytes + 2 * band + 16, guard);
  if (shared_bytes) std::memset(shared_start(), poison, shared_bytes);
  lanes.assign(static_cast<std::size_t>(threads), {});
  const bool watched = races::enabled();
  if (watched) races::begin_block(index, threads, wave, shared_start(), shared_bytes);
  for (int i = 0; i < threads; ++i)
    fibers[static_cast<std::size_t>(i)].start(
        [](void* p) {
          const auto& t = *static_cast<const thread_view*>(p);
          try {
            t.run->run(t, t.run->params);
          } catch (...) {
            if (!t.run->error) t.run->error = std::current_exception();
          }
        },
        &views[static_cast<std::size_t>(i)]);
  for (;;) {
    for (int i : order) {
      lane_state& l = lanes[static_cast<std::size_t>(i)];
      if (l.state != waiting::no) continue;
      fiber& f = fibers[static_cast<std::size_t>(i)];
      if (watched) races::enter(i, f.stack(), fiber::stack_size());
      running = &views[static_cast<std::size_t>(i)];
      f.resume();
      if (watched) {
        races::leave();
        if (const std::string race = races::take_report(); !race.empty()) fail(race.c_str());
      }
      if (f.overflowed()) fail("a thread's stack overflowed");
      if (f.done()) l.state = waiting::ended;
      if (error) std::rethrow_exception(error);
    }
    if (release_waiters()) continue;
    for (const lane_state& l : lanes)
      if (l.state != waiting::ended) report_stuck();
    break;
  }
  unsigned char* start = shared_start();
  for (unsigned char* p = shared.data(); p < shared.data() + shared.size(); ++p)
    if ((p < start || p >= start + shared_bytes) && *p != guard)
      fail("shared memory: written outside of what the launch asked for");
}

void run_blocks(std::int64_t grid, int threads, int wave, std::size_t shared_bytes, body run,
                const void* params) {
  if (threads % wave != 0) fail("a block is not made of whole waves");
  // As much as every supported device with waves of this size has: gfx90a and gfx942, sm_90.
  if (shared_bytes > (wave == 64 ? 64u : 227u) * 1024) fail("more shared memory than the device has");
  // One run per host thread, kept: making the stacks costs more than a small kernel.
  static thread_local block_run r;
  r.grid = grid;
  r.threads = threads;
  r.wave = wave;
  r.shared_bytes = shared_bytes;
  r.run = run;
  r.params = params;
  r.error = nullptr;
  while (r.fibers.size() < static_cast<std::size_t>(threads)) r.fibers.emplace_back();
  r.views.resize(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) r.views[static_cast<std::size_t>(i)] = {&r, i};
  for (auto& s : r.slots) s.assign(static_cast<std::size_t>(threads), 0);

  // Between waits, threads run one after another in this order; other orders show other races.
  std::vector<int> order(static_cast<std::size_t>(threads));
  std::iota(order.begin(), order.end(), 0);
  const char* seed = std::getenv("PORTILE_EMULATOR_SEED");
  std::mt19937 rng(seed ? static_cast<unsigned>(std::atoi(seed)) : 0u);
  if (races::enabled()) races::begin_launch();
  for (std::int64_t b = 0; b < grid; ++b) {
    if (seed)
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng() % i]);
    r.index = seed ? grid - 1 - b : b;
    r.run_block(order);
  }
}

}  // namespace portile::emulator
