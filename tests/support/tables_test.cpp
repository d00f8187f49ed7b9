// What no test of one operation can see: that an operation has tests at all. Part of the program of every
// family.
#include <portile/core/problem.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

TEST_CASE("every operation of the family has a table of bad problems and a test of its traps") {
  for (const op_info& op : operations()) {
    if (op.family != PORTILE_TEST_FAMILY) continue;
    INFO(op.name);
    CHECK(ops_with_refusals().count(op.name) == 1);
    CHECK((op.traps.empty() || ops_with_traps().count(op.name) == 1));
  }
}
