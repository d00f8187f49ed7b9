#pragma once
#include "fuzz/random_problem.hpp"

namespace portile::fuzz {

enum class outcome { refused, ran, trapped, too_large };

/// Checks, runs and runs again; throws failure when something that must hold does not.
outcome check_one(random_problem& r);

struct failure {
  std::string text;
};

}  // namespace portile::fuzz
