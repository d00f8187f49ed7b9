// portile ops: every operation with the implementations of every backend; the tables of the documentation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <portile/core/registry.hpp>

#include "command.hpp"

namespace portile::tool {
namespace {

enum class format { text, json, markdown, limits };

std::vector<std::string> options_of(const op_info& op) {
  std::vector<std::string> names;
  for (const field_info& f : op.fields)
    if (f.kind == field_kind::attribute) names.push_back(f.name);
  return names;
}

std::vector<std::string> implementation_names(const op_info& op) {
  std::vector<std::string> names;
  for (const implementation_ref& i : implementations(op.name)) names.emplace_back(i.entry->name);
  return names;
}

// A cell of a Markdown table.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}
std::string code_list(const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format("`{}`", fmt::join(names, "` `"));
}

std::string capture_text(const op_info& op) { return op.capture_safe ? "yes" : "not " + op.capture_note; }

void print_ops_json() {
  nlohmann::ordered_json j = nlohmann::ordered_json::array();
  for (const op_info& op : operations()) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const implementation_ref& i : implementations(op.name))
      list.push_back({{"name", i.entry->name},
                      {"backend", i.backend->name},
                      {"archs", split(i.entry->archs ? i.entry->archs : "", ',')}});
    j.push_back({{"name", op.name},
                 {"family", op.family},
                 {"options", options_of(op)},
                 {"tolerance", op.tolerance},
                 {"deterministic", op.deterministic},
                 {"capture_safe", op.capture_safe},
                 {"implementations", list}});
  }
  print_json(j);
}

int run(format f) {
  switch (f) {
    case format::json:
      print_ops_json();
      break;
    case format::text: {
      std::vector<std::vector<std::string>> rows{{"operation", "implementations", "meaning"}};
      for (const op_info& op : operations())
        rows.push_back({op.name, fmt::format("{}", fmt::join(implementation_names(op), " ")), op.summary});
      print_table(rows);
      break;
    }
    case format::markdown:
      fmt::print(
          "| operation | options | tolerance | deterministic | capture-safe | implementations "
          "|\n|---|---|---|---|---|---|\n");
      for (const op_info& op : operations())
        fmt::print("| `{}` | {} | {} | {} | {} | {} |\n", op.name, code_list(options_of(op)),
                   cell(op.tolerance), op.deterministic ? "yes" : "no", cell(capture_text(op)),
                   code_list(implementation_names(op)));
      break;
    case format::limits:
      fmt::print("| operation | rule | here |\n|---|---|---|\n");
      for (const op_info& op : operations())
        for (const limit_info& l : op.limits)
          fmt::print("| `{}` | {} | {} |\n", op.name, cell(l.rule), l.kept ? "kept" : "lifted");
      break;
  }
  return done;
}

}  // namespace

void add_ops(CLI::App& app, int& code) {
  auto f = std::make_shared<format>(format::text);
  CLI::App* sub = app.add_subcommand("ops", "Every operation with the implementations of every backend");
  const auto flag = [&](const char* name, format value, const char* text) {
    return sub->add_flag_callback(
        name, [f, value] { *f = value; }, text);
  };
  CLI::Option* json = flag("--json", format::json, "Print as JSON");
  CLI::Option* markdown =
      flag("--markdown", format::markdown, "Print the table of operations for the documentation");
  CLI::Option* limits = flag("--limits", format::limits, "Print the size rules of the peers: kept or lifted");
  json->excludes(markdown)->excludes(limits);
  markdown->excludes(limits);
  sub->callback([f, &code] { code = run(*f); });
}

}  // namespace portile::tool
