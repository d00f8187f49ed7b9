// portile verify: golden cases on every implementation present.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <portile/core/device.hpp>

#include "checker/verify.hpp"
#include "command.hpp"

namespace portile::tool {
namespace {

struct options {
  std::string op = "*", case_name = "*", cases, implementation, device;
  bool json = false;
};

std::string or_dash(const std::string& s) { return s.empty() ? "-" : s; }

void print(const golden::failure& f) {
  fmt::print("FAILED {} {} on {}: {}{}\n", f.op, or_dash(f.case_name), or_dash(f.implementation),
             f.array.empty() ? "" : f.array + ": ", f.text);
  if (!f.expected_bits.empty())
    fmt::print("  {}[{}]: expected {} ({}), got {} ({})\n", f.array, fmt::join(f.index, ", "), f.expected,
               f.expected_bits, f.got, f.got_bits);
  fmt::print("  {}\n", f.command);
}

int run(const options& o) {
  golden::verify_options v;
  v.cases = o.cases.empty() ? default_cases() : o.cases;
  v.op = o.op;
  v.case_name = o.case_name;
  v.implementation = o.implementation;
  if (!o.device.empty()) v.where = device::parse(o.device);
  if (!o.json) {
    v.on_failure = print;
    v.on_skip = [&, last = std::string()](const golden::skip& s) mutable {
      // One line for a run of cases that are skipped for one reason.
      const std::string line = fmt::format("skipped {} on {}: {}", s.op, or_dash(s.implementation), s.reason);
      if (line != last) fmt::print("{}\n", line);
      last = line;
    };
  }
  const golden::verify_result r = golden::verify(v);
  std::string nothing;
  if (r.cases == 0) {
    nothing = fmt::format("no case matches --op '{}' --case '{}' in {}", o.op, o.case_name, v.cases.string());
  } else if (!r.implementation_known) {
    nothing =
        fmt::format("no implementation '{}' of the operations that match --op '{}'", o.implementation, o.op);
  }
  if (o.json) {
    nlohmann::ordered_json j = {{"passed", r.passed},
                                {"failed", r.failed},
                                {"skipped", r.skipped},
                                {"failures", nlohmann::ordered_json::array()}};
    for (const golden::failure& f : r.failures)
      j["failures"].push_back({{"op", f.op},
                               {"case", f.case_name},
                               {"implementation", f.implementation},
                               {"array", f.array},
                               {"index", f.index},
                               {"expected", f.expected},
                               {"got", f.got},
                               {"expected_bits", f.expected_bits},
                               {"got_bits", f.got_bits},
                               {"text", f.text},
                               {"command", f.command}});
    print_json(j);
  }
  if (!nothing.empty()) fmt::print(stderr, "portile: verify: {}\n", nothing);
  if (!o.json) fmt::print("{} passed, {} failed, {} skipped\n", r.passed, r.failed, r.skipped);
  return r.failed == 0 && nothing.empty() ? done : check_failed;
}

}  // namespace

void add_verify(CLI::App& app, int& code) {
  auto o = std::make_shared<options>();
  CLI::App* sub = app.add_subcommand("verify", "Run golden cases on every implementation present");
  sub->add_option("--op", o->op, "Operations, as a pattern with * and ?");
  sub->add_option("--case", o->case_name, "Cases, as a pattern with * and ?");
  sub->add_option("--cases", o->cases, "Folder of the golden cases (default: the installed ones)");
  sub->add_option(
      "--impl", o->implementation,
      "Only this implementation; a refusal by the reference or by plain kernels (*.simt) is a failure");
  sub->add_option("--device", o->device, "Only on this device: cpu, cuda:0, hip:0");
  sub->add_flag("--json", o->json, "Print the result as JSON");
  sub->callback([o, &code] { code = run(*o); });
}

}  // namespace portile::tool
