// Queues, events, memory and dispatch on the fake device and the host.
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "core/fake.hpp"
#include "support/catch.hpp"
#include "support/memory.hpp"

using namespace portile;
using namespace portile::test;

namespace {

const device gpu0(device_kind::cuda, 0), gpu1(device_kind::cuda, 1);

plan make_plan(queue& q, const scale_rows& p, const run_options& o = {}) {
  return plan(q, scale_rows_info(), &p, o);
}
void run_plan(plan& p, const scale_rows& problem) { p.run_erased(scale_rows_info(), &problem); }
explanation explain_for(const queue& q, const scale_rows& p) {
  return detail::explain(q.get_device().info(), q.get_device().text(), scale_rows_info(), &p,
                         q.properties().host_fallback);
}

struct capture_guard {
  capture_guard() { fake_gpu().capturing = true; }
  ~capture_guard() { fake_gpu().capturing = false; }
};

/// Lines of the log while it lives.
struct log_lines {
  std::vector<std::string> lines;
  explicit log_lines(const char* channels) {
    set_log_sink([this](std::string_view c, std::string_view t) {
      lines.push_back(std::string(c) + ": " + std::string(t));
    });
    set_log_channels(channels);
  }
  ~log_lines() {
    set_log_channels("");
    set_log_sink({});
  }
  bool has(const std::string& part) const {
    for (const auto& l : lines)
      if (l.find(part) != std::string::npos) return true;
    return false;
  }
};

}  // namespace

TEST_CASE("queues own what they create and nothing else") {
  auto& c = fake_gpu();
  const int streams = c.streams, live = c.allocations - c.releases, events = c.events;
  {
    queue q{gpu1, {.checked = true}};
    CHECK(c.streams == streams + 1);
    CHECK(q.native_handle() != nullptr);
    CHECK(q.get_device() == gpu1);
    queue copy = q;
    CHECK(copy.native_handle() == q.native_handle());
    int mine = 0;
    queue wrapped = queue::wrap(gpu0, &mine);
    CHECK(wrapped.native_handle() == &mine);
    event e = q.record();
    event late;
    {
      queue gone{gpu1};
      late = gone.record();
    }
    CHECK_NOTHROW(late.wait());  // an event keeps its queue
    CHECK(c.events == events + 2);
  }
  CHECK(c.streams == streams);
  CHECK(c.events == events);
  CHECK(c.allocations - c.releases == live);
  CHECK(queue{cpu_selector}.native_handle() == nullptr);
  CHECK(queue{}.get_device() ==
        device{});  // no operation of libportile has an implementation for the fake device
  CHECK_HAS(thrown_by([] { queue q(device(device_kind::hip, 3)); }).text(), "device hip:3: not on this node");
  CHECK_HAS(thrown_by([] { queue q(gpu0, {.num_sms = 17}); }).text(), "num_sms = 17: must be 0 to 16");
  CHECK(thrown_by([] { queue q(gpu0, {.num_sms = -1}); }).code() == status_code::invalid_argument);
}

TEST_CASE("events measure the work between them") {
  queue q{gpu0}, other{gpu1};
  device_memory m;
  const scale_rows p = make_problem(m, 2, 2);
  const event a = q.record();
  run(q, p);
  run(q, p);
  const event b = q.record();
  b.wait();
  CHECK(b.milliseconds_since(a) == 2);
  CHECK(thrown_by([&] { (void)b.milliseconds_since(event()); }).code() == status_code::invalid_argument);
  CHECK(thrown_by([&] { (void)b.milliseconds_since(other.record()); }).code() ==
        status_code::invalid_argument);
  CHECK_NOTHROW(event().wait());
  queue host{cpu_selector};
  const event h0 = host.record(), h1 = host.record();
  CHECK(h1.milliseconds_since(h0) >= 0);
}

TEST_CASE("memory of queues") {
  for (const device d : {device{}, gpu0}) {
    queue q{d};
    auto* p = static_cast<unsigned char*>(malloc_device(1000, q));
    REQUIRE(p != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(p) % 256 == 0);
    memset(q, p, 7, 1000);
    unsigned char back[1000];
    memcpy(q, back, p, 1000);
    q.wait();
    CHECK(back[0] == 7);
    CHECK(back[999] == 7);
    memcpy(q, nullptr, nullptr, 0);
    memset(q, nullptr, 1, 0);
    portile::free(p, q);
    portile::free(nullptr, q);
    void* none = malloc_device(0, q);
    CHECK(none != nullptr);
    portile::free(none, q);
    void* h = malloc_host(64, q);
    CHECK(h != nullptr);
    free_host(h, q);
    for (const std::size_t bytes : {~std::size_t{0}, ~std::size_t{0} - 100, std::size_t{1} << 62})
      CHECK(thrown_by([&] { (void)malloc_device(bytes, q); }).code() == status_code::out_of_memory);
  }
}

TEST_CASE("run takes the first implementation that accepts") {
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 2, 3);
  p.times = 2;
  p.total = m.make(dtype::f32, {2});
  floats(p.total)[0] = 100;
  floats(p.total)[1] = 0;
  std::int64_t rows = 0;
  p.count = make_tensor(&rows, {1});
  run(q, p);
  CHECK(floats(p.out)[5] == 10);
  CHECK(floats(p.total)[0] == 106);
  CHECK(rows == 2);
  CHECK(make_plan(q, p).implementation() == "cuda.picky");
  CHECK(make_plan(q, p).backend() == "fake");
  p.times = 101;
  CHECK(make_plan(q, p).implementation() == "cuda.plain");
  p.times = 77;  // its supports throws: refused with the text, the next one is taken
  CHECK(make_plan(q, p).implementation() == "cuda.plain");
  CHECK_HAS(explain_for(q, p).text(), "cuda.picky (fake): no: supports threw at times = 77");
}

TEST_CASE("two devices of different architecture in one process: each gets what it can run") {
  device_memory m;
  queue on0{gpu0}, on1{gpu1};
  CHECK(std::string(gpu0.arch()) != std::string(gpu1.arch()));
  const scale_rows p = make_problem(m, 2, 3);
  scale_rows other = p;
  other.x.device = other.out.device = gpu1;
  for (int round = 0; round < 2; ++round) {  // the second one by the cached plans
    CHECK(make_plan(on0, p).implementation() == "cuda.picky");
    CHECK(make_plan(on1, other).implementation() == "cuda.plain");
    run(on0, p);
    run(on1, other);
  }
  CHECK_HAS(explain_for(on1, other).text(), "cuda.picky (fake): no: built for sm_90, the device is sm_80");
}

TEST_CASE("explain names every candidate, its reason and the one chosen") {
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 2, 3);
  p.times = 500;
  const explanation e = explain_for(q, p);
  CHECK(e.op == "test.scale_rows");
  CHECK(e.device == "cuda:0");
  CHECK(e.error.empty());
  CHECK(e.chosen == "cuda.plain");
  REQUIRE(e.candidates.size() == 3);
  CHECK(e.candidates[0].implementation == "cuda.picky");
  CHECK(e.candidates[0].backend == "fake");
  CHECK(!e.candidates[0].accepted);
  CHECK(e.candidates[0].reason == "times = 500 is above 100");
  CHECK(e.candidates[1].accepted);
  CHECK(e.candidates[1].reason == "yes");
  CHECK(e.candidates[2].reason == "runs on cpu, the device is cuda");
  CHECK(e.text() ==
        "test.scale_rows on cuda:0\n"
        "  cuda.picky (fake): no: times = 500 is above 100\n"
        "  cuda.plain (fake): yes\n"
        "  host.loops (fake_host): no: runs on cpu, the device is cuda\n"
        "  chosen: cuda.plain\n");
  // A bad problem: the error, all candidates, and no implementation is shown the problem.
  p.times = 0;
  const int calls = fake_gpu().supports_calls;
  const explanation bad = explain_for(q, p);
  CHECK_HAS(bad.error, "times = 0");
  CHECK(bad.candidates.size() == 3);
  CHECK(bad.candidates[0].reason == "not asked: the problem is bad");
  CHECK(bad.chosen.empty());
  CHECK(fake_gpu().supports_calls == calls);
  CHECK_HAS(bad.text(), "chosen: none");
  // With host_fallback, what would run is named.
  p.times = 1;
  p.mode = "host_only";
  CHECK(explain_for(q, p).chosen.empty());
  CHECK(explain_for(queue(gpu0, {.host_fallback = true}), p).chosen == "host.loops");
  portile_device_info model;
  REQUIRE(device_model("gfx942", model));
  const explanation elsewhere = detail::explain(model, model.arch, scale_rows_info(), &p);
  CHECK(elsewhere.device == "gfx942");
  CHECK(elsewhere.candidates[0].reason == "runs on cuda, the device is hip");
}

TEST_CASE("no implementation: unsupported, with the whole explanation, and nothing written") {
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 2, 3);
  p.mode = "host_only";
  const int launches = fake_gpu().launches;
  const status s = thrown_by([&] { run(q, p); });
  CHECK(s.code() == status_code::unsupported);
  CHECK(s.text() ==
        "test.scale_rows: device = cuda:0 (sm_90): no implementation takes this problem\n"
        "  cuda.picky: mode = 'host_only' is not for this device\n"
        "  cuda.plain: mode = 'host_only' is not for this device\n"
        "  host.loops: runs on cpu, the device is cuda");
  CHECK(fake_gpu().launches == launches);
  CHECK(static_cast<unsigned char*>(p.out.data)[0] == 0x5A);
}

TEST_CASE("forced implementations: by option and by list, and what a refusal says") {
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 2, 3);
  CHECK(make_plan(q, p, {.implementation = "cuda.plain"}).implementation() == "cuda.plain");
  p.times = 200;
  const status s = thrown_by([&] { run(q, p, {.implementation = "cuda.picky"}); });
  CHECK(s.code() == status_code::unsupported);
  CHECK_HAS(s.text(), "the forced implementation 'cuda.picky' does not take it");
  CHECK_HAS(s.text(), "cuda.picky: times = 200 is above 100");
  CHECK_HAS(s.text(), "cuda.plain: not the forced one");
  const status unknown = thrown_by([&] { run(q, p, {.implementation = "cuda.fast"}); });
  CHECK(unknown.code() == status_code::unsupported);
  CHECK_HAS(unknown.text(), "cuda.fast: no loaded backend has an implementation of that name");
  CHECK_HAS(unknown.text(), "cuda.plain");

  // A list names operations of libportile; what it names must exist.
  for (const char* bad : {"quant.per_token_cast", "=cuda.simt",
                          "quant.per_token_cast=", "quant.per_tokn_cast=cuda.simt", "x"}) {
    INFO(bad);
    CHECK(thrown_by([&] { set_forced_implementations(bad); }).code() == status_code::invalid_argument);
  }
  set_forced_implementations(" quant.* = cuda.fast , ,");
  test::memory host;
  quant::per_token_cast cast;
  cast.x = host.make(dtype::bf16, {1, 128});
  cast.out = host.make(dtype::e4m3, {1, 128});
  cast.out_sf = host.make(dtype::f32, {1, 1});
  queue cpu{cpu_selector};
  CHECK_HAS(thrown_by([&] { run(cpu, cast); }).text(),
            "the forced implementation 'cuda.fast' does not take it");
  set_forced_implementations("");
  CHECK_HAS(thrown_by([&] { run(cpu, cast); }).text(),
            "no implementation takes this problem\n  no loaded backend has an implementation");
}

TEST_CASE("the cache of plans follows what is forced, in any order of calls") {
  device_memory m;
  queue q{gpu0};
  const scale_rows p = make_problem(m, 2, 3);
  log_lines log("launch");
  const auto used = [&](const run_options& o) {
    log.lines.clear();
    run(q, p, o);
    return log.lines.at(0);
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    CHECK_HAS(used({}), "cuda.picky on");
    CHECK_HAS(used({.implementation = "cuda.plain"}), "cuda.plain on");
    CHECK_HAS(used({}), "cuda.picky on");
    CHECK_HAS(used({.implementation = "cuda.picky"}), "cuda.picky on");
    CHECK_HAS(used({.implementation = "cuda.plain"}), "cuda.plain on");
  }
  // A forced one that refuses leaves the cache alone.
  CHECK(thrown_by([&] { run(q, p, {.implementation = "nobody"}); }).code() == status_code::unsupported);
  CHECK_HAS(used({}), "cuda.picky on");
}

TEST_CASE("a second run with the same metadata asks nobody; other metadata does") {
  auto& c = fake_gpu();
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 2, 3);
  run(q, p);
  const int before = c.supports_calls;
  run(q, p);
  scale_rows moved = p;
  moved.x = make_problem(m, 2, 3).x;  // another pointer, aligned alike
  floats(moved.x)[0] = 41;
  run(q, moved);
  CHECK(floats(p.out)[0] == 41);
  CHECK(c.supports_calls == before);
  // Every kind of difference is seen.
  const auto asks = [&](auto change) {
    scale_rows other = p;
    change(other);
    const int n = c.supports_calls;
    (void)thrown_by([&] { run(q, other); });
    return c.supports_calls - n;
  };
  CHECK(asks([](auto& o) { o.times = 3; }) == 1);
  CHECK(asks([](auto& o) { o.factor = 3; }) == 1);
  CHECK(asks([](auto& o) { o.times = 3; }) == 0);  // several plans are kept
  CHECK(asks([](auto&) {}) == 0);
  CHECK(asks([](auto& o) { o.negate = true; }) == 1);
  CHECK(asks([](auto& o) { o.shift = 0; }) == 1);
  CHECK(asks([](auto& o) { o.limit = 1; }) == 1);
  CHECK(asks([&](auto& o) { o.total = m.make(dtype::f32, {2}); }) == 1);
  CHECK(asks([&](auto& o) { o.x.extents[0] = o.out.extents[0] = 1; }) == 1);
  CHECK(asks([&](auto& o) { o.x.strides[0] = 0; }) == 1);
  CHECK(asks([&](auto& o) {
          o.x.data = floats(o.x) + 1;
          o.x.extents[0] = o.out.extents[0] = 1;
        }) == 1);  // alignment
  // A bad problem is refused although a good one of the same shape was cached.
  scale_rows bad = p;
  bad.out.strides = {0, 1};
  CHECK(thrown_by([&] { run(q, bad); }).code() == status_code::invalid_argument);
  // More shapes than are kept.
  for (std::int64_t columns = 1; columns < 20; ++columns) run(q, make_problem(m, 1, columns));
  CHECK(asks([](auto&) {}) == 1);
}

TEST_CASE("lists: the plan owns its copy, and a changed element is seen") {
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 2, 2);
  std::vector<tensor> parts = {make_problem(m, 2, 2).x, make_problem(m, 2, 2).x};
  p.parts = {parts.data(), 2};
  run(q, p);
  CHECK(floats(p.out)[3] == 9);
  plan chosen = make_plan(q, p);
  const int before = fake_gpu().supports_calls;
  {
    std::vector<tensor> others = parts;
    scale_rows again = p;
    again.parts = {others.data(), 2};
    run(q, again);
    run_plan(chosen, again);
    CHECK(fake_gpu().supports_calls == before);
    others[1].strides = {1, 1};
    CHECK(thrown_by([&] { run_plan(chosen, again); }).code() == status_code::invalid_argument);
    again.parts.size = 1;
    CHECK_HAS(thrown_by([&] { run_plan(chosen, again); }).text(), "parts: differs from the planned problem");
    run(q, again);
    CHECK(floats(p.out)[3] == 6);
  }
  parts.assign(2, tensor{});
  parts.clear();
  parts.shrink_to_fit();
  scale_rows plain = p;
  plain.parts = {};
  CHECK_NOTHROW(run(q, plain));  // compared with cached plans whose callers' lists are gone
}

TEST_CASE("plan: same metadata runs, anything else is refused, options are kept") {
  auto& c = fake_gpu();
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 4, 8);
  plan chosen = make_plan(q, p, {.max_blocks = 3});
  CHECK(chosen.workspace_bytes() == 128);
  run_plan(chosen, p);
  CHECK(c.max_blocks == 3);
  scale_rows moved = make_problem(m, 4, 8);
  run_plan(chosen, moved);
  CHECK(floats(moved.out)[31] == 31);
  const auto refused = [&](auto change, const char* part) {
    scale_rows other = p;
    change(other);
    const int launches = c.launches;
    const status s = thrown_by([&] { run_plan(chosen, other); });
    CHECK(s.code() == status_code::invalid_argument);
    CHECK_HAS(s.text(), part);
    CHECK(c.launches == launches);
  };
  refused([](auto& o) { o.x.extents[0] = 3; },
          "x: differs from the planned problem in more than the pointer");
  refused([](auto& o) { o.out = {}; }, "out: differs");
  refused([](auto& o) { o.x.data = floats(o.x) + 1; }, "addresses must agree modulo 256");
  refused([](auto& o) { o.x.device = gpu1; }, "x: differs");
  refused([](auto& o) { o.factor = 2; }, "factor: differs");
  quant::per_token_cast cast;
  CHECK_HAS(thrown_by([&] { chosen.run(cast); }).text(),
            "plan of test.scale_rows: run with a problem of quant.per_token_cast");
  // Memory of the caller: used by every run, nothing is allocated.
  queue fresh{gpu0};
  alignas(256) static char memory[512];
  const int allocations = c.allocations;
  plan own = make_plan(fresh, p, {.workspace = memory, .workspace_bytes = sizeof memory});
  run_plan(own, p);
  CHECK(c.workspace == memory);
  CHECK(c.allocations == allocations);
  CHECK_HAS(thrown_by([&] { run(fresh, p, {.workspace = memory, .workspace_bytes = 100}); }).text(),
            "workspace_bytes = 100: must be at least 128");
  CHECK_HAS(thrown_by([&] { run(fresh, p, {.workspace = memory + 1, .workspace_bytes = 500}); }).text(),
            "must be 256-byte aligned");
}

TEST_CASE("the arena grows, is shared by copies, and survives a failing allocation") {
  auto& c = fake_gpu();
  device_memory m;
  queue q{gpu0};
  run(q, make_problem(m, 2, 2));
  void* small = c.workspace;
  run(q, make_problem(m, 1, 4));
  CHECK(c.workspace == small);
  queue copy = q;
  c.out_of_memory = true;
  CHECK(thrown_by([&] { run(copy, make_problem(m, 64, 64)); }).code() == status_code::out_of_memory);
  c.out_of_memory = false;
  CHECK_NOTHROW(run(q, make_problem(m, 64, 64)));
  const int allocations = c.allocations;
  run(copy, make_problem(m, 64, 63));
  CHECK(c.allocations == allocations);
}

TEST_CASE("capture: refused where it would allocate, allowed after a plan, and graphs keep their arena") {
  auto& c = fake_gpu();
  device_memory m;
  const scale_rows small = make_problem(m, 2, 2), large = make_problem(m, 32, 32);
  queue q{gpu0};
  {
    const capture_guard capture;
    const status s = thrown_by([&] { run(q, small); });
    CHECK(s.code() == status_code::capture_unsafe);
    CHECK_HAS(
        s.text(),
        "the workspace would grow to 16 bytes inside a capture: make a plan, or run once, before capturing");
    CHECK(thrown_by([&] { make_plan(q, small); }).code() == status_code::capture_unsafe);
    CHECK(thrown_by([&] { q.wait(); }).code() == status_code::capture_unsafe);
    CHECK(thrown_by([&] { queue checked(gpu0, {.checked = true}); }).code() == status_code::capture_unsafe);
  }
  plan chosen = make_plan(q, small);
  const int allocations = c.allocations, waits = c.waits, copies = c.copies, releases = c.releases;
  {
    const capture_guard capture;
    run_plan(chosen, small);
    run(q, small);
  }
  CHECK(c.allocations == allocations);
  CHECK(c.waits == waits);
  CHECK(c.copies == copies);
  void* held = c.workspace;
  run(q, large);  // grows outside the capture: the graph's arena must stay
  CHECK(c.workspace != held);
  CHECK(c.releases == releases);
  run(q, make_problem(m, 64, 64));  // the one in between was in no graph
  CHECK(c.releases == releases + 1);
}

TEST_CASE("launch failures carry op and implementation, and never abort") {
  device_memory m;
  queue q{gpu0, {.checked = true}};
  scale_rows p = make_problem(m, 2, 2);
  p.mode = "fails";
  const status s = thrown_by([&] { run(q, p); });
  CHECK(s.code() == status_code::out_of_memory);
  CHECK(s.text() == "test.scale_rows cuda.picky: the launch failed on purpose");
  p.mode = "throws";
  const status t = thrown_by([&] { run(q, p); });
  CHECK(t.code() == status_code::internal);
  CHECK_HAS(t.text(), "unknown exception");
  CHECK_NOTHROW(q.wait());
}

TEST_CASE("every tensor must lie on the queue's device, host fields in host memory") {
  device_memory m;
  queue q{gpu0};
  scale_rows p = make_problem(m, 2, 2);
  const auto refused = [&](queue& on, auto change) {
    scale_rows other = p;
    change(other);
    const status s = thrown_by([&] { run(on, other); });
    CHECK(s.code() == status_code::invalid_argument);
    return s.text();
  };
  CHECK_HAS(refused(q, [](auto& o) { o.x.device = device{}; }),
            "x.device = cpu: must be cuda:0, the queue's device");
  CHECK_HAS(refused(q, [](auto& o) { o.out.device = gpu1; }), "out.device = cuda:1: must be cuda:0");
  queue host{cpu_selector}, second{gpu1};
  CHECK_HAS(refused(host, [](auto&) {}), "x.device = cuda:0: must be cpu");
  CHECK_HAS(refused(second, [](auto&) {}), "x.device = cuda:0: must be cuda:1");
  std::vector<tensor> parts = {p.x, on_host(p).x};
  CHECK_HAS(refused(q,
                    [&](auto& o) {
                      o.parts = {parts.data(), 2};
                    }),
            "parts[1].device = cpu: must be cuda:0");
  CHECK_HAS(refused(q, [&](auto& o) { o.count = m.make(dtype::i64, {1}); }),
            "count.device = cuda:0: must be cpu (host memory)");
}

TEST_CASE("host_fallback computes on copies: strided, in-out, lists, host fields, shared buffers") {
  auto& c = fake_gpu();
  device_memory m;
  queue q{gpu0, {.host_fallback = true}}, plain{gpu0};
  scale_rows p;
  p.mode = "host_only";
  // x and out are interleaved columns of one buffer, as slices of a fused projection are: their bytes
  // overlap, their elements do not.
  const tensor fused = m.make(dtype::f32, {3, 8});
  for (int i = 0; i < 24; ++i) floats(fused)[i] = static_cast<float>(i);
  p.x = make_tensor(fused.data, dtype::f32, {3, 4}, {8, 1}, gpu0);
  p.out = make_tensor(floats(fused) + 4, dtype::f32, {3, 4}, {8, 1}, gpu0);
  p.total = m.make(dtype::f32, {3});
  for (int i = 0; i < 3; ++i) floats(p.total)[i] = 1000;
  const tensor other = m.make(dtype::f32, {3, 4}, {6, 1});
  for (int i = 0; i < 16; ++i) floats(other)[i] = 0.5f;
  std::vector<tensor> parts = {other, p.x};
  p.parts = {parts.data(), 2};
  std::int64_t rows = 0;
  p.count = make_tensor(&rows, {1});
  CHECK(thrown_by([&] { run(plain, p); }).code() == status_code::unsupported);

  log_lines log("dispatch");
  run(q, p);
  CHECK(log.has("host_fallback to host.loops"));
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 8; ++j) {
      const float x = static_cast<float>(i * 8 + j % 4);
      CHECK(floats(fused)[i * 8 + j] == (j < 4 ? x : 2 * x + 0.5f));
    }
  for (int i = 0; i < 3; ++i) CHECK(floats(p.total)[i] == 1000 + 2 * (4 * i * 8 + 6) + 2);
  CHECK(rows == 3);
  for (int i = 0; i < 3; ++i) CHECK(floats(other)[i * 6 + 3] == 0.5f);

  // Only elements of outputs are written back: 3 rows of 16 bytes, 12 bytes of sums; in: 24 + 3 + 16 floats.
  c.copied_bytes = 0;
  log.lines.clear();
  run(q, p);
  CHECK(log.has("host_fallback to host.loops"));  // each time, not only when it was chosen
  CHECK(c.copied_bytes == 3 * 16 + 12 + (24 - 0) * 4 + 12 + 16 * 4);
  CHECK(make_plan(q, p).host_fallback());

  // A column-major output, an empty problem, an address that is not 256-byte aligned.
  scale_rows t;
  t.mode = "host_only";
  t.x = make_problem(m, 3, 4).x;
  const tensor wide = m.make(dtype::f32, {4, 5});
  t.out = make_tensor(floats(wide) + 1, dtype::f32, {3, 4}, {1, 5}, gpu0);
  run(q, t);
  CHECK(floats(wide)[1 + 2 + 3 * 5] == 11);
  CHECK(static_cast<unsigned char*>(wide.data)[0] == 0x5A);
  CHECK(reinterpret_cast<unsigned char*>(floats(wide) + 4)[0] == 0x5A);
  scale_rows none = make_problem(m, 0, 4);
  none.mode = "host_only";
  none.x.data = none.out.data = nullptr;
  CHECK_NOTHROW(run(q, none));

  const capture_guard capture;
  CHECK(thrown_by([&] { run(q, t); }).code() == status_code::capture_unsafe);
}

TEST_CASE("host_fallback refuses with both sides' reasons when the host refuses too") {
  device_memory m;
  queue q{gpu0, {.host_fallback = true}};
  scale_rows p = make_problem(m, 2, 2);
  p.mode = "host_only";
  p.times = 99;
  CHECK(thrown_by([&] { run(q, p); }).code() == status_code::unsupported);
}

TEST_CASE("checked queues report the earliest launch that met bad data, once") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  device_memory m;
  for (const bool fallback : {false, true}) {
    queue q{gpu0, {.host_fallback = true, .checked = true}};
    scale_rows good = make_problem(m, 2, 3), bad = make_problem(m, 2, 3), worse = make_problem(m, 2, 3);
    if (fallback) good.mode = bad.mode = worse.mode = "host_only";
    floats(bad.x)[4] = nan;
    floats(bad.x)[5] = nan;
    worse.limit = 2;
    run(q, good);
    run(q, bad);
    run(q, worse);
    bool thrown = false;
    try {
      q.wait();
    } catch (const data_error& e) {
      thrown = true;
      CHECK(e.op() == "test.scale_rows");
      CHECK(e.rule() == "x must not be NaN");
      CHECK(e.index() == 4);
    }
    CHECK(thrown);
    CHECK_NOTHROW(q.wait());
    run(q, worse);
    CHECK_HAS(thrown_by([&] { q.wait(); }).text(), "data at index 3: x must not be above limit");
  }
  queue unchecked{gpu0};
  scale_rows bad = make_problem(m, 2, 3);
  floats(bad.x)[0] = nan;
  run(unchecked, bad);
  CHECK_NOTHROW(unchecked.wait());
}

TEST_CASE("the ring of checked launches: more launches than words, the first error kept for wait()") {
  device_memory m;
  for (const device d : {gpu0, device{}}) {
    queue q{d, {.checked = true}};
    scale_rows good = make_problem(m, 1, 4), bad = make_problem(m, 1, 4);
    floats(bad.x)[2] = std::numeric_limits<float>::quiet_NaN();
    if (d == device{}) good = on_host(good), bad = on_host(bad);
    scale_rows late = good;
    late.limit = 1;
    for (int i = 0; i < 100; ++i) run(q, good);
    run(q, bad);
    for (int i = 0; i < 300; ++i) CHECK_NOTHROW(run(q, i == 250 ? late : good));
    CHECK_HAS(thrown_by([&] { q.wait(); }).text(), "data at index 2: x must not be NaN");
    CHECK_NOTHROW(q.wait());
    for (int i = 0; i < 129; ++i) run(q, good);
    CHECK_NOTHROW(q.wait());
  }
}

TEST_CASE("checked launches in a capture are looked at after every wait") {
  device_memory m;
  queue q{gpu0, {.checked = true}};
  scale_rows p = make_problem(m, 1, 4);
  plan chosen = make_plan(q, p);
  {
    const capture_guard capture;
    run_plan(chosen, p);
  }
  CHECK_NOTHROW(q.wait());
  {
    const capture_guard capture;
    for (int i = 0; i < 127; ++i) run_plan(chosen, p);
    CHECK(thrown_by([&] { run_plan(chosen, p); }).code() == status_code::capture_unsafe);
  }
  // Graphs hold all words now.
  CHECK(thrown_by([&] { run_plan(chosen, p); }).code() == status_code::capture_unsafe);
  CHECK_NOTHROW(q.wait());
}

TEST_CASE("two queues and eight threads") {
  queue host{device{}, {.checked = true}}, dev{gpu0, {.checked = true}};
  std::atomic<int> wrong{0}, threw{0};
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n)
    threads.emplace_back([&, n] {
      try {
        device_memory m;
        for (int i = 0; i < 200; ++i) {
          scale_rows p = make_problem(m, 1 + (i + n) % 11, 3);
          p.times = 1 + i % 3;
          const bool on_gpu = (i + n) % 2 != 0;
          if (!on_gpu) p = on_host(p);
          queue& q = on_gpu ? dev : host;
          run(q, p, {.implementation = i % 5 == 0 ? (on_gpu ? "cuda.plain" : "host.loops") : ""});
          if (i % 50 == 0) q.wait();
          if (i % 70 == 0) (void)q.record();
          for (std::int64_t k = 0; k < p.x.numel(); ++k)
            if (floats(p.out)[k] != static_cast<float>(k * p.times)) ++wrong;
          if (i % 30 == 0) (void)explain_for(q, p);
          if (i % 40 == 0) (void)load_backend(plugin_file("twin1"));
        }
      } catch (const std::exception&) {
        ++threw;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
  CHECK(threw == 0);
}

TEST_CASE("cost of a cached run", "[.][cost]") {
  device_memory m;
  queue q{gpu0};
  const scale_rows p = make_problem(m, 1, 1);
  plan chosen = make_plan(q, p);
  const auto time = [&](auto f) {
    const auto t0 = std::chrono::steady_clock::now();
    for (int i = 0; i < 100000; ++i) f();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - t0).count() / 100000;
  };
  WARN("run: " << time([&] { run(q, p); }) << " ns, plan.run: " << time([&] { run_plan(chosen, p); })
               << " ns");
}
