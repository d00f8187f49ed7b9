#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"

namespace portile::golden {

enum class array_role { in, out, inout_before, inout_after, mask, info };

struct array_spec {
  std::string name;
  array_role role = array_role::in;
  std::filesystem::path file;
  dtype type = dtype::none;
  std::vector<std::int64_t> shape;    ///< stored elements
  std::vector<std::int64_t> strides;  ///< row-major where the manifest says nothing
  std::optional<comparison> compare;
};

struct param_spec {
  std::string name;
  std::string value;  ///< as any_problem::set takes it
};

struct case_spec {
  std::string name;
  std::vector<param_spec> params;
  std::vector<array_spec> arrays;
  std::string broken;  ///< why the case cannot be used; empty otherwise
};

/// One file <family>/<op>.json.
struct manifest {
  std::filesystem::path file;
  std::string op;
  std::vector<case_spec> cases;
  std::string broken;  ///< why the file cannot be used; empty otherwise
};

/// Reads a manifest. What is wrong with the file or with one case is kept in `broken`: the others can still
/// run.
manifest read_manifest(const std::filesystem::path& file);

/// Files <family>/<op>.json below the folder, sorted by op; throws invalid_argument when there is no such
/// folder.
std::vector<std::filesystem::path> find_manifests(const std::filesystem::path& folder);

/// "family.op" of such a file.
std::string op_of(const std::filesystem::path& manifest_file);

}  // namespace portile::golden
