#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <portile/core/device.hpp>

namespace portile::golden {

/// One thing that is wrong with one case.
struct failure {
  std::string op, case_name, implementation, array;
  std::vector<std::int64_t> index;  ///< empty when no element is meant (or a result of rank 0)
  std::string expected, got, expected_bits, got_bits;
  std::string text;     ///< what is wrong
  std::string command;  ///< repeats it
};

/// A case that did not run on an implementation, and why.
struct skip {
  std::string op, case_name, implementation, reason;
};

struct verify_options {
  std::filesystem::path cases;  ///< folder with <family>/<op>.json
  std::string op = "*";         ///< glob
  std::string case_name = "*";  ///< glob
  std::string implementation;   ///< empty: all that the devices have
  std::optional<device> where;  ///< empty: for each implementation the first device of its kind
  std::function<void(const failure&)> on_failure;  ///< called as they come
  std::function<void(const skip&)> on_skip;
};

/// Counts of (case, implementation).
struct verify_result {
  std::int64_t passed = 0, failed = 0, skipped = 0;
  std::int64_t cases = 0;            ///< that the filters matched
  bool implementation_known = true;  ///< false: the named implementation exists for no matched operation
  std::vector<failure> failures;
  std::vector<skip> skips;
};

/// Runs golden cases: the implementation is forced, every buffer lies between guard bands, outputs are
/// poisoned, each case runs twice from the same inputs (with another poison, so that an element nobody writes
/// shows), on a GPU once more with a small grid, and must give the same bits. Throws invalid_argument when
/// there is no such folder.
verify_result verify(const verify_options& options);

}  // namespace portile::golden
