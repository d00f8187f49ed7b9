// The entry that libFuzzer calls. PORTILE_FUZZ_OP=GLOB keeps it to some operations.
#include <cstdio>
#include <cstdlib>

#include "fuzz/check_one.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace portile;
  static const std::vector<const op_info*> chosen = [] {
    const char* glob = std::getenv("PORTILE_FUZZ_OP");
    std::vector<const op_info*> list;
    for (const op_info& op : operations())
      if (!glob || glob_match(glob, op.name)) list.push_back(&op);
    return list;
  }();
  fuzz::source from(data, size);
  if (chosen.empty()) std::abort();
  fuzz::random_problem r(*chosen[from.byte() % chosen.size()], from);
  try {
    fuzz::check_one(r);
  } catch (const fuzz::failure& f) {
    std::fprintf(stderr, "FAILED: %s\n%s", f.text.c_str(), r.text().c_str());
    std::abort();
  }
  return 0;
}
