// portile info: backends, loaded or not and why; devices, architectures, aspects.
#include <dlfcn.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <portile/core/registry.hpp>
#include <portile/core/version.hpp>

#include "command.hpp"

namespace portile::tool {
namespace {

// The host needs no plug-in: its run time is part of the library, which is listed like a backend.
backend_info host_backend() {
  backend_info b;
  b.name = "host";
  b.loaded = true;
  Dl_info where{};
  if (dladdr(reinterpret_cast<const void*>(&portile::backends), &where) && where.dli_fname)
    b.file = where.dli_fname;
  b.devices.emplace_back();
  return b;
}

std::string memory_text(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

int run(bool json) {
  std::vector<backend_info> list = backends();
  list.insert(list.begin(), host_backend());
  nlohmann::ordered_json j = {{"backends", nlohmann::ordered_json::array()}};
  for (const backend_info& b : list) {
    nlohmann::ordered_json one = {{"name", b.name},
                                  {"file", b.file},
                                  {"loaded", b.loaded},
                                  {"reason", b.reason},
                                  {"devices", nlohmann::ordered_json::array()}};
    if (!json)
      fmt::print("{}: {}{}\n  {}\n", b.name, b.loaded ? "loaded" : "not loaded",
                 b.reason.empty() ? "" : ": " + b.reason, b.file);
    std::vector<std::vector<std::string>> rows;
    for (const device d : b.devices) {
      const portile_device_info& i = d.info();
      const std::vector<std::string> aspects = aspect_names(i.aspects);
      one["devices"].push_back({{"kind", to_string(d.kind())},
                                {"ordinal", d.ordinal()},
                                {"name", i.name},
                                {"arch", i.arch},
                                {"aspects", aspects},
                                {"memory", i.memory}});
      rows.push_back(
          {d.text(), i.name, i.arch, memory_text(i.memory), fmt::format("{}", fmt::join(aspects, " "))});
    }
    if (!json) print_table(rows, "  ");
    j["backends"].push_back(std::move(one));
  }
  if (json) print_json(j);
  return done;
}

}  // namespace

void add_info(CLI::App& app, int& code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("info", "Backends, loaded or not and why; devices and what they can do");
  sub->add_flag("--json", *json, "Print as JSON");
  sub->callback([json, &code] { code = run(*json); });
}

}  // namespace portile::tool
