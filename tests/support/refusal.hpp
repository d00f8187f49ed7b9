#pragma once
// Tables of bad problems: each must be refused by check() and by run() with the same text, and nothing may be
// written.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <portile/core/dispatch.hpp>

#include "support/catch.hpp"
#include "support/memory.hpp"

namespace portile::test {

template <class P>
struct bad_problem {
  std::string what;                ///< name of the broken rule
  std::function<void(P&)> damage;  ///< applied to a good problem
  std::string text;                ///< must occur in the error
  std::size_t kept = 0;            ///< the `d.kept` of P that the row breaks, from 1; 0 for rules of fields
};

/// Bad problems that start from one good one.
template <class P>
struct bad_problems {
  std::function<P(memory&)> make;  ///< builds the good problem in the given memory (it is checked to be good)
  std::vector<bad_problem<P>> rows;
};

/// Operations that this program has a table of bad problems for, and those whose traps it springs. Filled
/// before main by the mere use of expect_refusals and expect_trap, whichever tests are then run:
/// tables_test.cpp compares them with the registry.
inline std::set<std::string>& ops_with_refusals() {
  static std::set<std::string> names;
  return names;
}
inline std::set<std::string>& ops_with_traps() {
  static std::set<std::string> names;
  return names;
}
template <class P>
inline const bool refusals_of = ops_with_refusals().emplace(P::name).second;
template <class P>
inline const bool traps_of = ops_with_traps().emplace(P::name).second;

template <class P>
void expect_refusal(const std::function<P(memory&)>& make, const bad_problem<P>& row) {
  memory m;
  P p = make(m);
  std::vector<tensor> outputs;
  for (const field_info& f : operation_of<P>().fields) {
    if (f.role != field_role::out) continue;
    if (f.kind == field_kind::tensor && f.tensor_in(&p).defined()) outputs.push_back(f.tensor_in(&p));
    if (f.kind == field_kind::tensor_list)
      for (std::int64_t i = 0; i < f.list_in(&p).size; ++i) outputs.push_back(f.list_in(&p)[i]);
  }
  row.damage(p);
  const status s = check(p);
  INFO(row.what << ": " << s.text());
  CHECK(s.code() == status_code::invalid_argument);
  CHECK(s.text().find(row.text) != std::string::npos);
  CHECK(s.text().starts_with(P::name));
  queue q{cpu_selector};
  std::string thrown;
  try {
    run(q, p);
  } catch (const error& e) {
    thrown = e.what();
    CHECK(e.code() == status_code::invalid_argument);
  }
  CHECK(thrown == s.text());
  for (const tensor& t : outputs) CHECK(memory::untouched(t));
  CHECK(m.guards_intact());
}

/// All tables of an operation at once, because together they must break every rule that its problem keeps:
/// the docs promise those, and a rule without a row is one that check() may have forgotten.
template <class P>
void expect_refusals(const std::vector<bad_problems<P>>& tables) {
  static_cast<void>(refusals_of<P>);
  std::vector<std::string> unbroken;
  for (const limit_info& l : operation_of<P>().limits)
    if (l.kept) unbroken.push_back(l.rule);
  for (const auto& [make, rows] : tables) {
    {
      memory m;
      const P good = make(m);
      INFO("the good problem: " << check(good).text());
      REQUIRE(check(good).ok());
    }
    for (const auto& row : rows) {
      expect_refusal<P>(make, row);
      INFO(row.what);
      REQUIRE(row.kept <= unbroken.size());
      if (row.kept > 0) unbroken[row.kept - 1].clear();
    }
  }
  for (std::size_t k = 0; k < unbroken.size(); ++k) {
    INFO(P::name << ": no row breaks kept rule " << k + 1 << ": " << unbroken[k]);
    CHECK(unbroken[k].empty());
  }
}

template <class P>
void expect_refusals(const std::function<P(memory&)>& make, const std::vector<bad_problem<P>>& rows) {
  expect_refusals<P>(std::vector<bad_problems<P>>(1, bad_problems<P>{make, rows}));
}

/// Runs on a `checked` host queue and expects wait() to report this rule of the operation at this flat index.
template <class P>
void expect_trap(const P& p, const std::string& rule_text, std::int64_t index) {
  static_cast<void>(traps_of<P>);
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, p);
  bool thrown = false;
  try {
    q.wait();
  } catch (const data_error& e) {
    thrown = true;
    INFO(e.what());
    CHECK(e.op() == P::name);
    CHECK(e.rule().find(rule_text) != std::string::npos);
    CHECK(e.index() == index);
  }
  CHECK(thrown);
  CHECK_NOTHROW(q.wait());
}

}  // namespace portile::test
