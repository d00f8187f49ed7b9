#pragma once
#include <optional>

#include "fuzz/random_problem.hpp"

namespace portile::fuzz {

enum class outcome { refused, ran, trapped, too_large };

/// An implementation to hold against the reference, on a device that computes in the host's memory.
struct other_implementation {
  device where;
  std::string name;
};

/// Checks, runs the reference and runs it again, then the other implementation with two grids; throws failure
/// when something that must hold does not.
outcome check_one(random_problem& r, const std::optional<other_implementation>& other = std::nullopt);

struct failure {
  std::string text;
};

}  // namespace portile::fuzz
