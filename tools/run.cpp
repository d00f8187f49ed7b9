// portile run block: the main job, on the words of a file.
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "block/block.hpp"
#include "command.hpp"

namespace portile::tool {
namespace {

struct options {
  block::settings block;
  std::string device, compare;
  bool json = false;
};

// A bar on standard error, on a terminal only, and only once a run has proved to be long.
class progress_bar {
 public:
  void operator()(double done) {
    using namespace std::chrono_literals;
    if (!isatty(STDERR_FILENO) || std::chrono::steady_clock::now() - start_ < 1s) return;
    const int filled = static_cast<int>(done * width);
    fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {:3.0f} %", "", filled, "", width - filled, done * 100);
    shown_ = true;
  }
  ~progress_bar() {
    if (shown_) fmt::print(stderr, "\r{:{}}\r", "", width + 8);
  }

 private:
  static constexpr int width = 40;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool shown_ = false;
};

std::string work(const block::stage& s) {
  return s.flop > 0 ? fmt::format("{:.3f} GFLOP", s.flop * 1e-9) : fmt::format("{:.3f} MB", s.bytes * 1e-6);
}
std::string speed(const block::stage& s) {
  if (s.milliseconds <= 0) return "-";
  return s.flop > 0 ? fmt::format("{:.4f} TFLOP/s", s.flop / s.milliseconds * 1e-9)
                    : fmt::format("{:.2f} GB/s", s.bytes / s.milliseconds * 1e-6);
}
std::string shown_implementation(const block::stage& s) {
  return s.implementation + (s.host_fallback ? " (host_fallback)" : "");
}
std::string comparison(const block::stage& s) {
  const bool fine = s.difference <= s.bound;
  if (s.bound == 0) return fine ? "equal bits" : fmt::format("{:.0f} ELEMENTS DIFFER", s.difference);
  return fmt::format("{:.2e} of {:.2e}{}", s.difference, s.bound, fine ? "" : " EXCEEDED");
}

void print_table(const block::settings& b, const block::outcome& o) {
  fmt::print(
      "block: {} tokens, hidden {}, {} experts of width {}, top-{}, {} layer(s), {} streams, on {}\n\n",
      o.tokens, b.hidden, b.experts, b.width, b.topk, b.layers, b.streams, o.device);
  fmt::print("{:<20} {:<40} {:<26} {:>10} {:>14} {:>16}{}\n", "stage", "op", "implementation", "time", "work",
             "speed", b.compare ? "  difference from cpu" : "");
  for (const block::stage& s : o.stages)
    fmt::print("{:<20} {:<40} {:<26} {:>7.3f} ms {:>14} {:>16}{}\n", s.name, s.op, shown_implementation(s),
               s.milliseconds, work(s), speed(s), s.compared ? "  " + comparison(s) : "");
  fmt::print("\nset-up {:.2f} s, stages {:.2f} s\n", o.setup_seconds, o.run_seconds);
  fmt::print("digest {:016x}, norm {:.6g}, largest {:.6g}\n", o.digest, o.norm, o.largest);
}

nlohmann::ordered_json to_json(const block::settings& b, const block::outcome& o) {
  nlohmann::ordered_json j = {
      {"tokens", o.tokens}, {"hidden", b.hidden}, {"experts", b.experts},
      {"topk", b.topk},     {"layers", b.layers}, {"streams", b.streams},
      {"width", b.width},   {"device", o.device}, {"stages", nlohmann::ordered_json::array()}};
  for (const block::stage& s : o.stages) {
    nlohmann::ordered_json row = {{"stage", s.name},
                                  {"op", s.op},
                                  {"implementation", s.implementation},
                                  {"host_fallback", s.host_fallback},
                                  {"milliseconds", s.milliseconds},
                                  {"bytes", s.bytes},
                                  {"flop", s.flop}};
    if (s.compared) {
      row["difference"] = s.difference;
      row["bound"] = s.bound;
      row["within_bound"] = s.difference <= s.bound;
    }
    j["stages"].push_back(std::move(row));
  }
  j["setup_seconds"] = o.setup_seconds;
  j["run_seconds"] = o.run_seconds;
  j["digest"] = fmt::format("{:016x}", o.digest);
  j["norm"] = o.norm;
  j["largest"] = o.largest;
  return j;
}

int run(options o) {
  if (!o.compare.empty() && o.compare != "cpu")
    throw usage_error("--compare = " + o.compare + ": must be cpu");
  o.block.compare = !o.compare.empty();
  const device where = o.device.empty() ? default_selector() : device::parse(o.device);
  progress_bar bar;
  const block::outcome result =
      block::run_block(o.block, queue(where, {.host_fallback = true}), [&](double done) { bar(done); });
  if (o.json)
    print_json(to_json(o.block, result));
  else
    print_table(o.block, result);
  if (!result.within_bounds)
    fmt::print(stderr,
               "portile: run block: a stage differs from the host reference by more than its bound\n");
  return result.within_bounds ? done : check_failed;
}

}  // namespace

void add_run(CLI::App& app, int& code) {
  auto o = std::make_shared<options>();
  CLI::App* sub = app.add_subcommand("run", "Run a whole job")->require_subcommand(1);
  CLI::App* block =
      sub->add_subcommand("block", "A Mixture-of-Experts transformer block on the words of a file");
  block->add_option("--input", o->block.input, "File whose words are the tokens; any bytes will do")
      ->required();
  block
      ->add_option("--tokens", o->block.tokens, "Number of tokens (default: 256, or as many as the file has)")
      ->check(CLI::PositiveNumber);
  block->add_option("--hidden", o->block.hidden, "Hidden size, a multiple of 256")->capture_default_str();
  block->add_option("--experts", o->block.experts, "Routed experts, a multiple of 4")->capture_default_str();
  block->add_option("--topk", o->block.topk, "Experts per token")->capture_default_str();
  block->add_option("--layers", o->block.layers, "Layers")->capture_default_str();
  block->add_option("--streams", o->block.streams, "Residual streams, 1 to 8")->capture_default_str();
  block->add_option("--width", o->block.width, "Hidden size of one expert, a multiple of 128")
      ->capture_default_str();
  block->add_option("--device", o->device, "cpu, cuda:0, hip:0 (default: the best one)");
  block->add_option(
      "--compare", o->compare,
      "cpu: run every stage on the host reference too, on the same inputs, and print each bound");
  block->add_flag("--json", o->json, "Print the result as JSON");
  block->callback([o, &code] { code = run(*o); });
}

}  // namespace portile::tool
