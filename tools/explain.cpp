// portile explain: every candidate and the reason it was refused, and the one chosen; also for a device that
// is not there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <portile/core/dispatch.hpp>
#include <portile/core/registry.hpp>

#include "command.hpp"
#include "problem_builder.hpp"

namespace portile::tool {
namespace {

struct options {
  std::string op, device, model;
  std::vector<std::string> settings, with;
  bool json = false;
};

// Why nothing on this kind of device can be chosen; empty when a backend of the kind is loaded.
std::string missing_backend(device_kind kind) {
  if (kind == device_kind::cpu) return {};
  std::string reasons;
  for (const backend_info& b : backends()) {
    if (b.table && b.table->device_kind == static_cast<std::int32_t>(kind)) return {};
    if (!b.loaded) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", b.file, b.reason);
  }
  const std::string name(to_string(kind));
  return fmt::format("no {} backend loaded: {}", name,
                     reasons.empty() ? "no file libportile_backend_" + name + ".so was found" : reasons);
}

void print_text(const explanation& e, const std::string& note) {
  fmt::print("{} on {}\n", e.op, e.device);
  if (!e.error.empty()) fmt::print("error: {}\n", e.error);
  if (!note.empty()) fmt::print("note: {}\n", note);
  std::vector<std::vector<std::string>> rows;
  for (const candidate& c : e.candidates)
    rows.push_back({c.implementation, c.accepted ? c.reason : "no: " + c.reason});
  print_table(rows, "  ");
  fmt::print("chosen: {}\n", e.chosen.empty() ? "none" : e.chosen);
}

int run(const options& o) {
  const op_info* op = find_operation(o.op);
  if (!op) throw usage_error(fmt::format("operation '{}': unknown; `portile ops` lists all", o.op));
  portile_device_info model{};
  portile::device where;
  if (!o.model.empty()) {
    if (!device_model(o.model, model))
      throw usage_error(
          fmt::format("device model '{}': unknown; known: {}", o.model, fmt::join(device_models(), " ")));
    where = portile::device(static_cast<device_kind>(model.kind), 0);
  } else {
    where = o.device.empty() ? default_selector() : device::parse(o.device);
    model = where.info();
  }
  const described_problem described(*op, o.settings, o.with, where);
  explanation e = explain(model, described.problem());
  if (o.model.empty()) e.device = fmt::format("{} ({})", where.text(), model.arch);
  const std::string note = missing_backend(where.kind());
  if (o.json) {
    nlohmann::ordered_json j = {{"op", e.op}, {"device", e.device}};
    if (!e.error.empty()) j["error"] = e.error;
    if (!note.empty()) j["note"] = note;
    j["candidates"] = nlohmann::ordered_json::array();
    for (const candidate& c : e.candidates)
      j["candidates"].push_back(
          {{"implementation", c.implementation}, {"accepted", c.accepted}, {"reason", c.reason}});
    j["chosen"] = e.chosen;
    print_json(j);
  } else {
    print_text(e, note);
  }
  return e.error.empty() ? done : check_failed;
}

}  // namespace

void add_explain(CLI::App& app, int& code) {
  auto o = std::make_shared<options>();
  CLI::App* sub =
      app.add_subcommand("explain", "Every candidate for a problem, its reason, and the chosen one");
  sub->add_option("op", o->op, "Operation, such as quant.per_token_cast")->required();
  sub->add_option(
      "settings", o->settings,
      "key=value: a dimension, an attribute, FIELD.dtype, FIELD.strides (a,b) or FIELD.offset (elements)");
  sub->add_option("--with", o->with, "An optional tensor that is given; may be repeated")
      ->allow_extra_args(false);
  CLI::Option* device = sub->add_option("--device", o->device, "cpu, cuda:0, hip:0 (default: the best one)");
  sub->add_option("--device-model", o->model, "A device that need not be there: sm_90, gfx942, ...")
      ->excludes(device);
  sub->add_flag("--json", o->json, "Print as JSON");
  sub->callback([o, &code] { code = run(*o); });
}

}  // namespace portile::tool
