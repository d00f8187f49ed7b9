// A program without Kokkos that loads a library with its own copy of it, and uses the reference plug-in with
// the other copy.
#include <dlfcn.h>

#include <fstream>
#include <iostream>
#include <set>
#include <string>

#include <portile/portile.hpp>

using namespace portile;

namespace {

void cast() {
  static float x[128], sf[1];
  static numeric::e4m3 out[128];
  quant::per_token_cast p;
  p.x = make_tensor(x, {1, 128});
  p.out = make_tensor(out, {1, 128});
  p.out_sf = make_tensor(sf, {1, 1});
  queue q{cpu_selector};
  run(q, p);
}

int call(void* library, const char* name) { return reinterpret_cast<int (*)()>(dlsym(library, name))(); }

}  // namespace

int main(int, char** argv) try {
  void* second = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!second) throw std::runtime_error(dlerror());
  cast();
  std::cout << "second copy initialized by the reference: " << call(second, "second_is_initialized") << "\n";
  call(second, "second_start");
  std::cout << "sum: " << call(second, "second_sum") << "\n";
  cast();
  call(second, "second_stop");
  cast();
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> copies;
  for (std::string line; std::getline(maps, line);)
    if (line.find("kokkoscore") != std::string::npos) copies.insert(line.substr(line.rfind('/') + 1));
  std::cout << "copies: " << copies.size() << "\n";
  return 0;
} catch (const std::exception& e) {
  std::cout << "threw: " << e.what() << "\n";
  return 3;
}
