#pragma once
// What the subcommands share. Each has a file and an `add_...` function that declares its options and sets
// its action.
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <portile/core/abi.h>

namespace portile::tool {

enum exit_code { done = 0, check_failed = 1, bad_input = 2 };

/// Input of the user that cannot be used: its text goes to stderr, exit code 2.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Each declares a subcommand. Its action stores the exit code in `code`.
void add_info(CLI::App& app, int& code);
void add_ops(CLI::App& app, int& code);
void add_run(CLI::App& app, int& code);
void add_explain(CLI::App& app, int& code);
void add_verify(CLI::App& app, int& code);

/// Folder of the golden cases: installed beside this program, else the source tree's.
std::string default_cases();

/// Names of the aspect bits.
std::vector<std::string> aspect_names(std::uint64_t bits);
/// Architectures of an implementation as a list.
std::vector<std::string> split(std::string_view text, char separator);

/// JSON as one text, two spaces deep. Keys stay in the order in which they were written.
void print_json(const nlohmann::ordered_json& j);
/// Rows of equal length as aligned columns, two spaces apart.
void print_table(const std::vector<std::vector<std::string>>& rows, std::string_view indent = "");

}  // namespace portile::tool
