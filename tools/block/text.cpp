#include "block/text.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <portile/core/status.hpp>

namespace portile::block {

std::uint64_t fnv1a(const void* data, std::size_t bytes, std::uint64_t h) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) h = (h ^ p[i]) * 1099511628211ull;
  return h;
}

std::vector<std::int32_t> read_tokens(const std::string& file) {
  const auto refuse = [&](const std::string& rule) {
    throw error(status_code::invalid_argument, "--input = " + file + ": " + rule);
  };
  if (std::filesystem::is_directory(file)) refuse("is a folder, must be a file");
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse(std::strerror(errno));
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  if (in.bad()) refuse("cannot be read");
  if (bytes.empty()) refuse("is empty, must hold at least one word");

  constexpr std::string_view separators(" \t\r\n\f\v\0", 7);
  std::vector<std::int32_t> tokens;
  std::size_t at = 0;
  while ((at = bytes.find_first_not_of(separators, at)) != std::string::npos) {
    const std::size_t end = std::min(bytes.find_first_of(separators, at), bytes.size());
    tokens.push_back(static_cast<std::int32_t>(fnv1a(bytes.data() + at, end - at) >> 33));
    at = end;
  }
  if (tokens.empty()) refuse("holds no word");
  return tokens;
}

std::vector<std::int32_t> ngrams(const std::vector<std::int32_t>& tokens, std::int64_t count,
                                 std::int64_t n) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count * n), 0);
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t q = 0; q < n && q <= t; ++q)
      rows[static_cast<std::size_t>(t * n + q)] = tokens[static_cast<std::size_t>(t - q)];
  return rows;
}

}  // namespace portile::block
