// Status, dtype, tensor, word, formulas, fields, device names: everything that needs no queue.
#include <cmath>
#include <limits>

#include "core/fake.hpp"
#include "support/catch.hpp"
#include "support/memory.hpp"

using namespace portile;
using namespace portile::test;

TEST_CASE("status carries code and text and throws them") {
  CHECK(status().ok());
  CHECK_NOTHROW(status().or_throw());
  const status s(status_code::unsupported, "why");
  CHECK(!s.ok());
  const status t = thrown_by([&] { s.or_throw(); });
  CHECK(t.code() == status_code::unsupported);
  CHECK(t.text() == "why");
  for (int i = 0; i <= 7; ++i) CHECK(std::string(to_string(static_cast<status_code>(i))) != "unknown");
  CHECK(std::string(to_string(static_cast<status_code>(99))) == "unknown");
  CHECK(failure_code(4) == status_code::out_of_memory);
  CHECK(failure_code(0) == status_code::internal);
  CHECK(failure_code(-3) == status_code::internal);
  CHECK(failure_code(1000) == status_code::internal);
  const data_error e("a.b", "the rule", 17);
  CHECK(e.code() == status_code::data_error);
  CHECK_HAS(e.what(), "a.b: data at index 17: the rule");
}

TEST_CASE("every dtype has a name and a size, and names are read back") {
  for (int i = 1; i < num_dtypes; ++i) {
    const auto t = static_cast<dtype>(i);
    CHECK(dtype_from_string(to_string(t)) == t);
    CHECK(size_of(t) > 0);
  }
  CHECK(dtype_from_string("float8") == dtype::none);
  CHECK(dtype_from_string("none") == dtype::none);
  CHECK(size_of(dtype::none) == 0);
  CHECK(to_string(static_cast<dtype>(200)) == "invalid");
  CHECK(size_of(static_cast<dtype>(200)) == 0);
  CHECK(stored_extent(dtype::e2m1x2, 7) == 4);
  CHECK(stored_extent(dtype::ue8m0x4, 5) == 2);
  CHECK(stored_extent(dtype::e5m6x8, 16) == 24);
  CHECK(value_extent(dtype::e5m6x8, 24) == 16);
  CHECK(dtypes({dtype::f32, dtype::bf16, dtype::i8}).text() == "f32, bf16 or i8");
}

TEST_CASE("tensor: strides, span, contiguity, text") {
  float x[64] = {};
  const tensor t = make_tensor(x, {3, 5});
  CHECK(t.contiguous());
  CHECK(t.numel() == 15);
  CHECK(t.span() == 15);
  CHECK(t.text() == "f32[3, 5] on cpu");
  const tensor s = make_tensor(x, dtype::f32, {3, 5}, {8, 1});
  CHECK(!s.contiguous());
  CHECK(s.span() == 21);
  CHECK(s.text() == "f32[3, 5] strides [8, 1] on cpu");
  const tensor point = make_tensor(x, {});
  CHECK(point.rank == 0);
  CHECK(point.numel() == 1);
  CHECK(point.span() == 1);
  CHECK(point.contiguous());
  const tensor none = make_tensor(x, dtype::f32, {4, 0, 3}, {100, 50, 7});
  CHECK(none.numel() == 0);
  CHECK(none.span() == 0);
  CHECK(none.contiguous());
  const tensor broadcast = make_tensor(x, dtype::f32, {std::int64_t{1} << 40, 4}, {0, 1});
  CHECK(broadcast.span() == 4);
  const std::int64_t big = std::int64_t{1} << 62;
  CHECK(!make_tensor(x, dtype::f32, {big, big}, {big, 1}).contiguous());
  CHECK(make_tensor(x, {1, 3}).contiguous());
  CHECK(!tensor{}.defined());
  CHECK(tensor{}.text() == "absent");
  CHECK(thrown_by([&] { make_tensor(x, {1, 1, 1, 1, 1, 1}); }).code() == status_code::invalid_argument);
  CHECK(thrown_by([&] { make_tensor(x, dtype::f32, {2, 2}, {1}); }).code() == status_code::invalid_argument);
  tensor broken = t;
  broken.rank = 99;
  CHECK(broken.text() == "f32 of rank 99");
}

TEST_CASE("word holds 31 characters") {
  const std::string longest(31, 'a');
  CHECK(word(longest).view() == longest);
  CHECK(thrown_by([&] { word(longest + "a"); }).code() == status_code::invalid_argument);
  CHECK(word("ab") == word("ab"));
  CHECK(!(word("ab") == word("abc")));
  CHECK(word().empty());
  constexpr word fixed = "fixed";
  STATIC_REQUIRE(fixed == "fixed");
}

TEST_CASE("formulas: arithmetic, functions, unknown names, overflow, syntax errors") {
  const formula::lookup names = [](std::string_view n) -> std::optional<std::int64_t> {
    if (n == "n") return 10;
    if (n == "zero") return 0;
    if (n == "minus") return -7;
    if (n == "big") return std::numeric_limits<std::int64_t>::max();
    return {};
  };
  const auto value = [&](const char* text) { return formula(text).evaluate(names); };
  CHECK(value("n + 2 * 3") == 16);
  CHECK(value("(n + 2) * 3") == 36);
  CHECK(value("n / 3") == 3);
  CHECK(value("minus / 2") == -4);
  CHECK(value("ceil(minus, 2)") == -3);
  CHECK(value("ceil(n, 4)") == 3);
  CHECK(value("align(n, 4)") == 12);
  CHECK(value("max(n, 3) - min(n, 3)") == 7);
  CHECK(value("n ? 1 : 2") == 1);
  CHECK(value("zero ? 1 : zero ? 3 : 4") == 4);
  CHECK(value(" n ") == 10);
  CHECK(!value("m + 1"));
  CHECK(!value("n / zero"));
  CHECK(!value("ceil(n, zero)"));
  CHECK(!value("big + 1"));
  CHECK(!value("big * 2"));
  CHECK(!value("minus * big"));
  CHECK(!value("align(big, 2)"));
  for (const char* bad : {"", "n +", "(n", "n n", "ceil(n)", "3n", "sqrt(n, 2)", "99999999999999999999"}) {
    INFO(bad);
    CHECK(thrown_by([&] { formula f(bad); }).code() == status_code::internal);
  }
  CHECK(formula("n + 3").linear() == std::pair(std::string("n"), std::int64_t{3}));
  CHECK(formula("n-4").linear() == std::pair(std::string("n"), std::int64_t{-4}));
  CHECK(!formula("n * 2").linear());
  CHECK(!formula("2").linear());
  CHECK(formula("a + ceil(b, c)").names() == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("shapes: alternatives, leading dimensions, rank 0") {
  const shape_spec s = shape_spec::parse("rows, ceil(columns, 2) | batch, rows, columns");
  REQUIRE(s.alternatives.size() == 2);
  CHECK(s.alternatives[0].extents.size() == 2);
  CHECK(s.alternatives[1].extents.size() == 3);
  CHECK(shape_spec::parse("..., n").alternatives[0].open);
  CHECK(shape_spec::parse("").alternatives[0].extents.empty());
}

namespace {

struct any_rank {
  static constexpr const char* name = "test.any_rank";
  tensor x;
  tensor scalar;
  static void describe(description<any_rank>& d) {
    d.in("x", &any_rank::x, "..., n", dtype::f32, "values").any_strides();
    d.out("scalar", &any_rank::scalar, "", dtype::f32, "one value").optional();
  }
  void check(checker&) const {}
  void infer(inference&) const {}
};

status check_any_rank(const any_rank& p) {
  static const op_info op = make_op_info<any_rank>();
  return check(op, &p);
}

}  // namespace

TEST_CASE("declared rules: one text per broken rule") {
  memory m;
  scale_rows p;
  p.x = m.make(dtype::f32, {3, 4});
  p.out = m.make(dtype::f32, {3, 4});
  p.total = m.make(dtype::f32, {3});
  REQUIRE(check_of(p).ok());
  const auto refusal = [&](auto damage) {
    scale_rows bad = p;
    damage(bad);
    const status s = check_of(bad);
    CHECK(s.code() == status_code::invalid_argument);
    return s.text();
  };
  const std::int64_t big = std::int64_t{1} << 60;
  CHECK_HAS(refusal([](auto& b) { b.x = {}; }), "test.scale_rows: x = absent: is required");
  CHECK_HAS(refusal([](auto& b) {
              b.count = {};
              b.count.data = b.x.data;
            }),
            "count.dtype = none: must be given with the memory of a tensor");
  CHECK_HAS(refusal([](auto& b) { b.x.dtype = dtype::bf16; }), "x.dtype = bf16: must be f32");
  CHECK_HAS(refusal([](auto& b) { b.x.dtype = static_cast<dtype>(77); }), "x.dtype = invalid");
  CHECK_HAS(refusal([](auto& b) { b.x.rank = 3; }), "x.rank = 3: its shape must be [rows, columns]");
  CHECK_HAS(refusal([](auto& b) { b.x.rank = -1; }), "x.rank = -1");
  CHECK_HAS(refusal([](auto& b) { b.x.extents[0] = -1; }), "x.extents[0] = -1: must not be negative");
  CHECK_HAS(refusal([](auto& b) { b.x.strides[1] = -1; }), "x.strides[1] = -1: must not be negative");
  CHECK_HAS(refusal([](auto& b) { b.out.strides = {1, 1}; }), "must not overlap itself");
  CHECK_HAS(refusal([](auto& b) { b.out.strides = {4, 0}; }), "must not overlap itself");
  CHECK_HAS(refusal([](auto& b) { b.total.strides = {2}; }),
            "total.strides[0] = 2: the last stride must be 1");
  CHECK_HAS(refusal([](auto& b) { b.x.data = nullptr; }), "x.data = null");
  CHECK_HAS(refusal([](auto& b) { b.x.data = static_cast<char*>(b.x.data) + 2; }),
            "misaligned: must be a multiple of the element size, 4 bytes");
  CHECK_HAS(refusal([](auto& b) { b.out.extents[1] = 3; }), "must be columns = 4");
  CHECK_HAS(refusal([&](auto& b) {
              b.x.extents = {big, big};
              b.x.strides = {0, 0};
            }),
            "is too large");
  CHECK_HAS(refusal([&](auto& b) {
              b.x.extents = {3, 4};
              b.x.strides = {big, 1};
            }),
            "is too large");
  CHECK_HAS(refusal([](auto& b) { b.parts = {nullptr, 2}; }), "parts.data = null");
  CHECK_HAS(refusal([](auto& b) { b.parts = {nullptr, -1}; }), "parts.size = -1: must be 0 to 64");
  CHECK_HAS(refusal([](auto& b) { b.parts = {&b.x, 65}; }), "parts.size = 65: must be 0 to 64");
  const tensor absent;
  CHECK_HAS(refusal([&](auto& b) { b.parts = {&absent, 1}; }), "parts[0] = absent: is required");
  CHECK_HAS(refusal([&](auto& b) { b.parts = {&b.total, 1}; }), "parts[0].rank = 1");
  CHECK_HAS(refusal([](auto& b) { b.mode = "fast"; }),
            "mode = 'fast': must be one of '' 'host_only' 'throws' 'fails'");
  CHECK_HAS(refusal([](auto& b) { b.times = 0; }), "times = 0: must not be 0");
  CHECK_HAS(refusal([](auto& b) { b.limit = -0.5; }), "limit = -0.5: must be positive");
  // Only the first broken rule counts, declared ones before the operation's own.
  CHECK_HAS(refusal([](auto& b) {
              b.times = 0;
              b.x = {};
            }),
            "x = absent");

  scale_rows empty = p;
  empty.x.extents = empty.out.extents = {0, 4};
  empty.total.extents = {0};
  empty.x.data = empty.out.data = empty.total.data = nullptr;
  CHECK(check_of(empty).ok());
}

TEST_CASE("leading dimensions: up to rank 5, and a scalar output") {
  memory m;
  any_rank p;
  p.x = m.make(dtype::f32, {2, 1, 2, 1, 3});
  p.scalar = m.make(dtype::f32, {});
  CHECK(check_any_rank(p).ok());
  p.x.rank = 6;
  CHECK_HAS(check_any_rank(p).text(), "x.rank = 6");
  p.x.rank = 100000;
  CHECK_HAS(check_any_rank(p).text(), "x.rank = 100000");
  p.x.rank = 0;
  CHECK_HAS(check_any_rank(p).text(), "x.rank = 0");
}

TEST_CASE("checker: need, need_one_of, need_both_or_none, need_multiple, dim") {
  memory m;
  scale_rows p;
  p.x = m.make(dtype::f32, {3, 4});
  p.out = m.make(dtype::f32, {3, 4});
  const auto text = [&](auto f) {
    checker c(scale_rows_info(), &p);
    REQUIRE(c.ok());
    f(c);
    return c.result().text();
  };
  CHECK(text([](checker& c) { c.need(true, "a", 1, "rule"); }).empty());
  CHECK(text([](checker& c) {
          c.need(false, "a", true, "rule");
          c.need(false, "b", 2, "other");
        }) == "test.scale_rows: a = true: rule");
  CHECK_HAS(text([](checker& c) {
              c.need_one_of<std::int64_t>("a", 5, {1, 2});
            }),
            "a = 5: must be one of 1, 2");
  CHECK_HAS(text([](checker& c) { c.need_both_or_none("a", true, "b", false); }),
            "b = absent: must be given together with a");
  CHECK_HAS(text([](checker& c) { c.need_multiple("a", 5, 4); }), "a = 5: must be a multiple of 4");
  CHECK_HAS(text([](checker& c) { c.need_multiple("a", 5, 0); }), "a = 5");
  checker c(scale_rows_info(), &p);
  CHECK(c.dim("rows") == 3);
  CHECK(c.dim("columns") == 4);
  CHECK(c.dim("times") == 1);
  CHECK(c.dim("unheard_of") == 0);
}

TEST_CASE("inference: outputs from inputs alone, from dimensions alone, and what is missing") {
  memory m;
  scale_rows p;
  p.x = m.make(dtype::f32, {3, 4});
  const auto outputs = infer(scale_rows_info(), &p);
  REQUIRE(outputs.size() == 2);
  CHECK(outputs[0].field == "out");
  CHECK(outputs[0].dtype == dtype::f32);
  CHECK(outputs[0].extents == std::vector<std::int64_t>{3, 4});
  CHECK(outputs[0].strides == std::vector<std::int64_t>{4, 1});
  CHECK(outputs[1].extents == std::vector<std::int64_t>{3});
  scale_rows nothing;
  CHECK_HAS(thrown_by([&] { infer(scale_rows_info(), &nothing); }).text(), "its extent rows is not known");
  environment env(scale_rows_info(), &nothing);
  env.bind("rows", 7);
  env.bind("columns", 2);
  CHECK(infer(scale_rows_info(), &nothing, env)[0].extents == std::vector<std::int64_t>{7, 2});
  scale_rows null_list = p;
  null_list.parts = {nullptr, 3};
  CHECK_NOTHROW(infer(scale_rows_info(), &null_list));
  CHECK(scale_rows_info().dimensions == std::vector<std::string>{"columns", "rows"});
  CHECK(scale_rows_info().is_ignored("note"));
}

TEST_CASE("any_problem sets and reads every type of attribute") {
  any_problem p(scale_rows_info());
  const auto text = [&](const char* name) { return p.op().find(name)->attribute_text(p.get()); };
  const struct {
    const char *name, *value, *back;
  } good[] = {
      {"negate", "true", "true"}, {"negate", "0", "false"},    {"times", "-12", "-12"},
      {"factor", "0.25", "0.25"}, {"factor", "1e-3", "0.001"}, {"mode", "host_only", "host_only"},
      {"mode", "", ""},           {"shift", "5", "5"},         {"shift", "none", "none"},
      {"limit", "2.5", "2.5"},    {"limit", "none", "none"},
  };
  for (const auto& g : good) {
    p.set(g.name, g.value);
    CHECK(text(g.name) == g.back);
  }
  const struct {
    const char *name, *value, *why;
  } bad[] = {
      {"negate", "yes", "must be true or false"},
      {"times", "1.5", "must be a whole number"},
      {"times", "", "must be a whole number"},
      {"times", "99999999999999999999", "must be a whole number"},
      {"factor", "much", "must be a number"},
      {"mode", "a word that is longer than 31 characters", "at most 31"},
      {"shift", "x", "must be a whole number"},
      {"limit", "1,5", "must be a number"},
      {"x", "1", "no such attribute"},
      {"speed", "1", "no such attribute"},
  };
  for (const auto& b : bad) {
    const status s = thrown_by([&] { p.set(b.name, b.value); });
    CHECK(s.code() == status_code::invalid_argument);
    CHECK_HAS(s.text(), b.why);
    CHECK_HAS(s.text(), std::string("test.scale_rows: ") + b.name);
  }
  float x[1];
  p["x"] = make_tensor(x, {1, 1});
  p.set("times", "3");
  const any_problem copy = p;
  p.set("times", "4");
  CHECK(copy.op().find("times")->attribute_text(copy.get()) == "3");
  CHECK(static_cast<const scale_rows*>(copy.get())->x.data == x);
  CHECK(thrown_by([&] { p["parts"]; }).code() == status_code::invalid_argument);
  CHECK(thrown_by([&] { p["y"]; }).code() == status_code::invalid_argument);
  CHECK(get_operation("quant.per_token_cast").family == "quant");
  CHECK(thrown_by([] { get_operation("quant.per_tokn_cast"); }).code() == status_code::invalid_argument);
}

TEST_CASE("attributes are compared by value, not by the bytes of an empty optional") {
  scale_rows a, b;
  const auto same = [&](const char* name) { return scale_rows_info().find(name)->same_attribute(&a, &b); };
  a.shift = 5;
  a.shift.reset();  // leaves 5 behind
  CHECK(same("shift"));
  a.shift = 0;
  CHECK(!same("shift"));
  a.mode = "host_only";
  a.mode = "";
  CHECK(same("mode"));
  a.factor = b.factor = std::numeric_limits<double>::quiet_NaN();
  CHECK(same("factor"));
  a.limit = 1.0;
  b.limit = 1.5;
  CHECK(!same("limit"));
  a.negate = true;
  CHECK(!same("negate"));
  b.times = 2;
  CHECK(!same("times"));
}

TEST_CASE("glob patterns") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("moe.*", "moe.topk_gate"));
  CHECK(!glob_match("moe.*", "gemm.nt"));
  CHECK(glob_match("*.n?", "gemm.nt"));
  CHECK(glob_match("a*b*c", "a-b-b-c"));
  CHECK(!glob_match("a*b", "a-b-c"));
  CHECK(!glob_match("", "a"));
  CHECK(glob_match("**", "a"));
  // Takes for ever in the naive recursion.
  CHECK(!glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(300, 'a')));
}

TEST_CASE("devices by name, and models of devices that are not there") {
  (void)fake_gpu();
  CHECK(device::parse("cpu") == device{});
  CHECK(device::parse("cuda") == device(device_kind::cuda, 0));
  CHECK(device::parse("cuda:1").ordinal() == 1);
  for (const char* bad :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:7", "hip:0", "cpu:1", "cuda:1 ", "cuda:99999999999"}) {
    INFO(bad);
    CHECK(thrown_by([&] { device::parse(bad); }).code() == status_code::invalid_argument);
  }
  CHECK(device(device_kind::cuda, 1).text() == "cuda:1");
  CHECK(device(device_kind::cuda, 1).name() == "fake device");
  CHECK(device(device_kind::cuda, 0).has(aspect::wgmma));
  CHECK(!device(device_kind::cuda, 0).has(aspect::tcgen05));
  CHECK(device::all().size() == 3);
  CHECK(device::all().back() == device{});
  CHECK(device{}.aspects() == std::vector<aspect>{aspect::fp64});
  portile_device_info model;
  CHECK(device_model("gfx942", model));
  CHECK(model.wave_size == 64);
  CHECK(device_model("cpu", model));
  CHECK(!device_model("sm_91", model));
  CHECK(aspects_of_arch("sm_91") == 0);
  CHECK(to_string(static_cast<device_kind>(9)) == "invalid");
  CHECK(to_string(static_cast<device_kind>(-1)) == "invalid");
  CHECK(to_string(static_cast<aspect>(63)) == "invalid");
  for (int i = 0; i < num_aspects; ++i) CHECK(to_string(static_cast<aspect>(i)) != "invalid");
}

TEST_CASE("log: channels, sink, a sink that logs or throws") {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view c, std::string_view t) {
    lines.push_back(std::string(c) + "|" + std::string(t));
    if (t == "again") log("load", "nested");
    if (t == "throw") throw std::runtime_error("from a sink");
  });
  log("load", "off");
  CHECK(lines.empty());
  set_log_channels("load,dispatch");
  CHECK(log_enabled("load"));
  CHECK(!log_enabled("launch"));
  log("load", "on");
  log("launch", "off");
  log("load", "again");
  CHECK_NOTHROW(log("load", "throw"));
  CHECK(lines == std::vector<std::string>{"load|on", "load|again", "load|nested", "load|throw"});
  set_log_channels("all");
  CHECK(log_enabled("launch"));
  set_log_channels("");
  CHECK(!log_enabled("load"));
  set_log_sink({});
}
