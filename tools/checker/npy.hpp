#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <portile/core/dtype.hpp>

namespace portile::golden {

/// Contents of a .npy file: C-ordered elements as they are stored.
struct npy_array {
  std::string storage;  ///< numpy's name of the element type: "<f4", "|u1"
  std::vector<std::int64_t> shape;
  std::vector<unsigned char> bytes;
};

/// Reads version 1 to 3 of the format; throws invalid_argument with the file's name for anything else.
npy_array read_npy(const std::filesystem::path& file);

/// numpy's name of the type that the golden files store this element type as; empty when they never hold it.
std::string npy_storage(dtype type);

}  // namespace portile::golden
