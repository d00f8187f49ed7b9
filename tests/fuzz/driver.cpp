// Random problems without a fuzzer: the same ones on every run, for every operation.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

#include "fuzz/check_one.hpp"
#ifdef PORTILE_FUZZ_CUDA_GRAPHS
#include "fuzz/cuda_graph.hpp"
#endif

namespace {

char repeat_text[256];  // what a signal handler can still print

void on_signal(int number) {
  const char text[] = "\nportile_fuzz_driver: crashed; repeat with: ";
  if (write(2, text, sizeof text - 1) < 0 || write(2, repeat_text, std::strlen(repeat_text)) < 0)
    std::_Exit(1);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

std::function<void(portile::queue&, const std::function<void()>&)> replay_on(
    [[maybe_unused]] portile::device d) {
#ifdef PORTILE_FUZZ_CUDA_GRAPHS
  if (d.kind() == portile::device_kind::cuda && std::strcmp(d.info().arch, "emulated") != 0)
    return &portile::fuzz::replay_as_graph;
#endif
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace portile;
  std::string glob = "*", implementation;
  std::uint64_t runs = 100, first = 0;
  bool show = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "--op")
      glob = value, ++i;
    else if (arg == "--runs")
      runs = std::strtoull(value, nullptr, 10), ++i;
    else if (arg == "--first")
      first = std::strtoull(value, nullptr, 10), ++i;
    else if (arg == "--impl")
      implementation = value, ++i;
    else if (arg == "--show")
      show = true;
    else
      return std::fprintf(stderr, "usage: %s [--op GLOB] [--runs N] [--first K] [--impl NAME] [--show]\n",
                          argv[0]),
             2;
  }
  for (const int number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(number, on_signal);

  // The emulated device that has the implementation.
  const auto find = [&](const op_info& op) -> std::optional<fuzz::other_implementation> {
    for (const implementation_ref& i : implementations(op.name))
      for (const device d : device::all())
        if (i.entry->name == implementation && i.entry->device_kind == static_cast<std::int32_t>(d.kind()))
          return fuzz::other_implementation{d, implementation, replay_on(d)};
    return std::nullopt;
  };

  int failed = 0, tried = 0;
  for (const op_info& op : operations()) {
    if (!glob_match(glob, op.name)) continue;
    const auto other = find(op);
    if (!implementation.empty() && !other) continue;
    ++tried;
    int counts[4] = {};
    for (std::uint64_t k = first; k < first + runs; ++k) {
      std::snprintf(repeat_text, sizeof repeat_text, "%s --op '%s' --first %llu --runs 1 --show%s%s\n",
                    argv[0], op.name.c_str(), static_cast<unsigned long long>(k), other ? " --impl " : "",
                    implementation.c_str());
      fuzz::source from(k);
      try {
        fuzz::random_problem r(op, from);
        if (show) std::printf("%s", r.text().c_str()), std::fflush(stdout);
        try {
          ++counts[static_cast<int>(fuzz::check_one(r, other))];
        } catch (const fuzz::failure& f) {
          ++failed;
          std::printf("FAILED: %s\n%srepeat with: %s", f.text.c_str(), r.text().c_str(), repeat_text);
        }
      } catch (const std::exception& e) {
        ++failed;
        std::printf("FAILED: %s: %s\nrepeat with: %s", op.name.c_str(), e.what(), repeat_text);
      }
    }
    std::printf("%-45s ran %4d, trapped %4d, refused %4d, too large %3d\n", op.name.c_str(), counts[1],
                counts[2], counts[0], counts[3]);
    std::fflush(stdout);
    // An operation whose random problems are all refused is not tested.
    if (runs >= 100 && counts[1] + counts[2] == 0)
      ++failed, std::printf("FAILED: %s: no problem ran\n", op.name.c_str());
  }
  if (tried == 0) ++failed, std::printf("FAILED: no operation matches %s\n", glob.c_str());
  std::printf("%d operations, %d failures\n", tried, failed);
  return failed ? 1 : 0;
}
