#pragma once
// Tables of bad problems: each must be refused by check() and by run() with the same text, and nothing may be
// written.
#include <functional>
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
};

/// `make` builds a good problem in the given memory (it is checked to be good).
template <class P>
void expect_refusals(const std::function<P(memory&)>& make, const std::vector<bad_problem<P>>& table) {
  {
    memory m;
    const P good = make(m);
    INFO("the good problem: " << check(good).text());
    REQUIRE(check(good).ok());
  }
  const op_info& op = get_operation(P::name);
  for (const auto& row : table) {
    memory m;
    P p = make(m);
    std::vector<tensor> outputs;
    for (const field_info& f : op.fields)
      if (f.kind == field_kind::tensor && f.role == field_role::out && f.tensor_in(&p).defined())
        outputs.push_back(f.tensor_in(&p));
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
}

/// Runs on a `checked` host queue and expects wait() to report this rule of the operation at this flat index.
template <class P>
void expect_trap(const P& p, const std::string& rule_text, std::int64_t index) {
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
