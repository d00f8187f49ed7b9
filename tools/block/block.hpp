#pragma once
// The main job: a Mixture-of-Experts transformer block on the words of a file.
#include <cstdint>
#include <string>

#include "block/runner.hpp"

namespace portile::block {

struct settings {
  std::string input;
  std::int64_t tokens = 0;  ///< 0: 256, or as many as the file has
  std::int64_t hidden = 1024;
  std::int64_t experts = 16;
  std::int64_t topk = 4;
  std::int64_t layers = 1;
  std::int64_t streams = 4;
  std::int64_t width = 512;  ///< of one expert
  bool compare = false;      ///< every stage against the host reference, on the device's inputs
};

struct outcome {
  std::int64_t tokens = 0;
  std::string device;
  std::vector<stage> stages;
  double setup_seconds = 0, run_seconds = 0;
  std::uint64_t digest = 0;  ///< FNV-1a of the final residual's bits
  double norm = 0;           ///< Euclidean norm of the final residual
  double largest = 0;        ///< largest magnitude in it
  bool within_bounds = true;
};

/// Throws invalid_argument for a file or sizes that do not fit, before anything is allocated.
outcome run_block(const settings& s, queue q, const std::function<void(double done)>& progress);

}  // namespace portile::block
