#include "command.hpp"

#include <cstdio>
#include <filesystem>

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

void print_json(const nlohmann::ordered_json& j) {
  // Names come from files and devices: bytes that are no UTF-8 must not stop the output.
  const std::string text = j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace portile::tool
