#include "command.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include <portile/core/device.hpp>

namespace portile::tool {

std::string default_cases() {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path program = fs::read_symlink("/proc/self/exe", ec);
  if (!ec) {
    const fs::path installed = (program.parent_path() / PORTILE_GOLDEN_INSTALLED).lexically_normal();
    if (fs::is_directory(installed, ec)) return installed.string();
  }
  return PORTILE_GOLDEN_SOURCE;
}

std::vector<std::string> aspect_names(std::uint64_t bits) {
  std::vector<std::string> names;
  for (int i = 0; i < num_aspects; ++i)
    if (bits >> i & 1) names.emplace_back(to_string(static_cast<aspect>(i)));
  return names;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  }
  return parts;
}

void print_json(const nlohmann::ordered_json& j) {
  // Names come from files and devices: bytes that are no UTF-8 must not stop the output.
  const std::string text = j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void print_table(const std::vector<std::vector<std::string>>& rows, std::string_view indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line(indent);
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], widths[i]) : row[i];
    fmt::print("{}\n", line);
  }
}

}  // namespace portile::tool
