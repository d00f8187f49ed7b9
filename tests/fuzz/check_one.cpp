#include "fuzz/check_one.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <portile/core/numeric/bf16.hpp>

namespace portile::fuzz {
namespace {

void must(bool holds, const std::string& text) {
  if (!holds) throw failure{text};
}

void expect_memory_untouched(random_problem& r, bool outputs_too) {
  for (buffer& b : r.buffers) {
    must(b.guards_intact(), "wrote outside " + b.view.text());
    if (outputs_too || b.role == field_role::in)
      must(b.unchanged(), "wrote to " + b.view.text());
    else
      must(b.gaps_unchanged(), "wrote between the elements of " + b.view.text());
  }
}

// check() said no: run says the same, and nothing is written.
void expect_refusal(random_problem& r, const status& s) {
  must(s.code() == status_code::invalid_argument,
       std::string("check() gave ") + to_string(s.code()) + ": " + s.text());
  must(s.text().starts_with(r.op().name + ": "),
       "the text of check() does not begin with the operation: " + s.text());
  queue q{cpu_selector};
  std::string text = "nothing";
  try {
    run(q, r.problem);
  } catch (const error& e) {
    text = e.what();
  }
  must(text == s.text(), "check() says '" + s.text() + "' and run says '" + text + "'");
  expect_memory_untouched(r, true);
}

// What infer gives must be what check() accepts.
void expect_inferred(const random_problem& r) {
  for (const output_spec& spec : infer(r.op(), r.problem.get())) {
    const field_info* f = r.op().find(spec.field);
    must(f && f->kind != field_kind::attribute && f->role != field_role::in, "infer names " + spec.field);
    if (f->kind == field_kind::tensor_list) continue;
    const tensor& t = f->tensor_in(r.problem.get());
    if (!t.defined() || spec.worst_case) continue;
    // What is updated in place may be larger than the operation needs.
    const auto fits = [&](std::int64_t want, std::int64_t have) {
      return f->role == field_role::inout ? have >= want : have == want;
    };
    must(t.rank == static_cast<int>(spec.extents.size()) &&
             std::equal(spec.extents.begin(), spec.extents.end(), t.extents.begin(), fits),
         "check() accepts " + spec.field + " = " + t.text() + ", which infer gives other extents");
  }
}

using contents = std::vector<std::vector<std::uint8_t>>;

contents contents_of(random_problem& r) {
  contents all;
  for (buffer& b : r.buffers) all.push_back(b.contents());
  return all;
}

/// Waits; what the data did wrong, or "".
std::string wait_for(random_problem& r, queue& q) {
  try {
    q.wait();
  } catch (const data_error& e) {
    must(std::find(r.op().traps.begin(), r.op().traps.end(), e.rule()) != r.op().traps.end(),
         "undeclared trap: " + e.rule());
    return e.rule() + " at index " + std::to_string(e.index());
  }
  return {};
}

/// Runs once on the host, on memory as it was made.
std::string run_once(random_problem& r, queue& q) {
  for (buffer& b : r.buffers) b.restore();
  try {
    run(q, r.problem);
  } catch (const error& e) {
    throw failure{std::string("check() accepts it and run does not: ") + e.what()};
  }
  const std::string trapped = wait_for(r, q);
  expect_memory_untouched(r, false);
  return trapped;
}

/// Copies of the buffers on a device, at the same address modulo 256 and with their guard bands. An emulated
/// device computes in the host's memory and needs none.
class device_memory {
 public:
  device_memory(random_problem& r, queue& q) : r_(r), q_(q) {
    const bool emulated = std::string_view(q.get_device().info().arch) == "emulated";
    r.move_to(q.get_device(), [&](buffer& b) -> void* {
      if (emulated) return b.data();
      copy c{&b, malloc_device(b.whole().size() + 512, q), nullptr};
      c.start = static_cast<std::uint8_t*>(c.base) + reinterpret_cast<std::uintptr_t>(b.whole().data()) % 256;
      copies_.push_back(c);
      return c.start + buffer::band;
    });
  }
  ~device_memory() {
    for (const copy& c : copies_) free(c.base, q_);
  }
  device_memory(const device_memory&) = delete;

  void restore() {
    for (buffer& b : r_.buffers) b.restore();
    for (const copy& c : copies_) {
      const unpoisoned open(*c.from);
      memcpy(q_, c.start, c.from->whole().data(), c.from->whole().size());
      q_.wait();
    }
  }
  void fetch() {
    for (const copy& c : copies_) {
      const unpoisoned open(*c.from);
      memcpy(q_, c.from->whole().data(), c.start, c.from->whole().size());
      q_.wait();
    }
  }

 private:
  struct copy {
    buffer* from;
    void* base;
    std::uint8_t* start;
  };
  struct unpoisoned {
    explicit unpoisoned(buffer& b) : b_(b) { b_.guard(false); }
    ~unpoisoned() { b_.guard(true); }
    buffer& b_;
  };
  random_problem& r_;
  queue& q_;
  std::vector<copy> copies_;
};

/// An element of a floating-point tensor, or nothing.
std::optional<double> real_at(const buffer& b, const std::vector<std::uint8_t>& bytes, std::size_t i) {
  const std::uint8_t* at = bytes.data() + i * static_cast<std::size_t>(size_of(b.view.dtype));
  const auto read = [&](auto v) {
    std::memcpy(&v, at, sizeof v);
    return v;
  };
  switch (b.view.dtype) {
    case dtype::f32:
      return read(0.0f);
    case dtype::f64:
      return read(0.0);
    case dtype::bf16:
      return numeric::to_float(read(numeric::bf16{}));
    default:
      return std::nullopt;
  }
}

/// Where the contract says bits they must be equal. Elsewhere, with inputs of moderate size, floating-point
/// values must be close on the scale of their tensor: the exact bound is the golden cases' to judge.
void expect_agreement(const random_problem& r, const contents& expected, const contents& got, bool trapped) {
  const bool bits = r.op().tolerance == "bits";
  for (std::size_t k = 0; k < r.buffers.size(); ++k) {
    const buffer& b = r.buffers[k];
    if (expected[k] == got[k]) continue;
    const auto element = static_cast<std::size_t>(size_of(b.view.dtype));
    const std::size_t n = expected[k].size() / element;
    double largest = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (const auto v = real_at(b, expected[k], i); v && std::isfinite(*v))
        largest = std::max(largest, std::abs(*v));
    for (std::size_t i = 0; i < n; ++i) {
      if (std::memcmp(&expected[k][i * element], &got[k][i * element], element) == 0) continue;
      const auto want = real_at(b, expected[k], i), have = real_at(b, got[k], i);
      // The sign and payload of an fp32 NaN are the device's own.
      const bool both_nan = want && std::isnan(*want) && std::isnan(*have);
      const double bound = 0x1p-6 * largest + 1e-4;
      const bool close = want && std::abs(*want - *have) <= bound;
      if (both_nan && (!bits || b.view.dtype != dtype::bf16)) continue;
      if (!bits && (close || r.extreme || trapped || !want)) continue;
      std::string text = "element " + std::to_string(i) + " of " + b.view.text() + ": ";
      if (want) text += "expected " + std::to_string(*want) + ", got " + std::to_string(*have) + "; ";
      text += "bytes expected";
      for (std::size_t j = 0; j < element; ++j) text += " " + std::to_string(expected[k][i * element + j]);
      text += ", got";
      for (std::size_t j = 0; j < element; ++j) text += " " + std::to_string(got[k][i * element + j]);
      throw failure{text};
    }
  }
}

/// With two grids and, where the device has such a thing, recorded and replayed on the data put back. False
/// when the implementation does not take the problem.
bool expect_as_reference(random_problem& r, const other_implementation& other, const contents& expected,
                         const std::string& trapped) {
  queue q{other.where, queue_properties{.checked = true}};
  device_memory memory(r, q);
  contents first;
  const auto compare = [&](const char* what, const std::string& found) {
    memory.fetch();
    must(found == trapped, std::string(what) + ": the reference reports '" + trapped + "' and " + other.name +
                               " '" + found + "'");
    expect_memory_untouched(r, false);
    const contents got = contents_of(r);
    expect_agreement(r, expected, got, !trapped.empty());
    must(first.empty() || first == got, std::string(what) + ": other bits than before");
    first = got;
  };
  try {
    run_options o;
    o.implementation = other.name;
    for (const std::int64_t max_blocks : {0, 2}) {
      o.max_blocks = max_blocks;
      memory.restore();
      run(q, r.problem, o);
      compare(max_blocks == 0 ? "run" : "two blocks", wait_for(r, q));
    }
    const std::vector<field_info>& fields = r.op().fields;
    const bool on_host_too = std::any_of(fields.begin(), fields.end(), [&](const field_info& f) {
      return f.on_host && f.kind == field_kind::tensor && f.tensor_in(r.problem.get()).defined();
    });
    if (!other.replay || on_host_too) return true;
    o.max_blocks = 0;
    queue unchecked{other.where};
    plan chosen(unchecked, r.problem, o);
    memory.restore();
    other.replay(unchecked, [&] { chosen.run(r.problem); });
    unchecked.wait();
    compare("replay", trapped);
    return true;
  } catch (const error& e) {
    // Only the implementations that take everything must take this one.
    if (e.code() == status_code::unsupported && !other.name.ends_with(".simt")) return false;
    throw failure{std::string("check() accepts it and ") + other.name + " does not: " + e.what()};
  }
}

}  // namespace

outcome check_one(random_problem& r, const std::optional<other_implementation>& other) {
  const status s = check(r.op(), r.problem.get());
  queue q{cpu_selector, queue_properties{.checked = true}};
  const explanation why = explain(q, r.problem);
  must(why.error == s.text(), "explain's error is not the one of check(): " + why.error);
  if (!s.ok()) {
    expect_refusal(r, s);
    return outcome::refused;
  }
  expect_inferred(r);
  if (!r.runnable || !r.on_host()) return outcome::too_large;

  const std::string trapped = run_once(r, q);
  const contents expected = contents_of(r);
  must(run_once(r, q) == trapped, "the second run found other data broken");
  for (std::size_t i = 0; i < r.buffers.size(); ++i) {
    const std::vector<std::uint8_t> again = r.buffers[i].contents();
    const auto at = std::mismatch(expected[i].begin(), expected[i].end(), again.begin());
    must(at.first == expected[i].end(), "the second run gave other bits in " + r.buffers[i].view.text() +
                                            " from byte " + std::to_string(at.first - expected[i].begin()) +
                                            " of " + std::to_string(again.size()));
  }
  if (other && !expect_as_reference(r, *other, expected, trapped)) return outcome::refused;
  return trapped.empty() ? outcome::ran : outcome::trapped;
}

}  // namespace portile::fuzz
