#include "fuzz/check_one.hpp"

#include <algorithm>

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
    must(t.rank == static_cast<int>(spec.extents.size()) &&
             std::equal(spec.extents.begin(), spec.extents.end(), t.extents.begin()),
         "check() accepts " + spec.field + " = " + t.text() + ", which infer gives other extents");
  }
}

}  // namespace

outcome check_one(random_problem& r) {
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

  outcome result = outcome::ran;
  std::vector<std::vector<std::uint8_t>> first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (buffer& b : r.buffers) b.restore();
    try {
      run(q, r.problem);
    } catch (const error& e) {
      throw failure{std::string("check() accepts it and run does not: ") + e.what()};
    }
    try {
      q.wait();
    } catch (const data_error& e) {
      must(std::find(r.op().traps.begin(), r.op().traps.end(), e.rule()) != r.op().traps.end(),
           "undeclared trap: " + e.rule());
      result = outcome::trapped;
    }
    expect_memory_untouched(r, false);
    for (std::size_t i = 0; i < r.buffers.size(); ++i) {
      if (repeat == 0)
        first.push_back(r.buffers[i].contents());
      else
        must(first[i] == r.buffers[i].contents(),
             "the second run gave other bits in " + r.buffers[i].view.text());
    }
  }
  return result;
}

}  // namespace portile::fuzz
