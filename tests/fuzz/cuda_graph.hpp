#pragma once
#include "fuzz/check_one.hpp"

namespace portile::fuzz {

/// Captures what the function submits to a CUDA queue, then launches the graph and waits for it.
void replay_as_graph(queue& q, const std::function<void()>& submit);

}  // namespace portile::fuzz
