#pragma once
#include <optional>

#include "fuzz/random_problem.hpp"

namespace portile::fuzz {

enum class outcome { refused, ran, trapped, too_large };

/// An implementation to hold against the reference.
struct other_implementation {
  device where;
  std::string name;
  /// Records what the function submits to the queue, instead of running it, and then runs the record; empty
  /// without such a thing.
  std::function<void(queue&, const std::function<void()>&)> replay;
};

/// Checks, runs the reference and runs it again, then the other implementation with two grids; throws failure
/// when something that must hold does not.
outcome check_one(random_problem& r, const std::optional<other_implementation>& other = std::nullopt);

struct failure {
  std::string text;
};

}  // namespace portile::fuzz
