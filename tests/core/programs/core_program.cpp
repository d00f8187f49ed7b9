// Run by tests in a child process: what the library says about its plug-ins, in the environment the test gave
// it.
//   list                 file, loaded or refused, reason of every plug-in
//   load FILE...         load_backend on each, then list
//   explain MODEL N      quant.per_token_cast with num_per_channels = N on a device model
//   cast [IMPL]          runs quant.per_token_cast on the default device
#include <cstring>
#include <iostream>

#include <portile/portile.hpp>

using namespace portile;

namespace {

void list() {
  for (const backend_info& b : backends())
    std::cout << b.name << (b.loaded ? " loaded " : " refused ") << b.file << " [" << b.version
              << "] devices " << b.devices.size() << ": " << b.reason << "\n";
}

quant::per_token_cast problem(float* x, numeric::e4m3* out, float* sf, std::int64_t channels) {
  quant::per_token_cast p;
  p.x = make_tensor(x, {1, 128});
  p.out = make_tensor(out, {1, 128});
  p.out_sf = make_tensor(sf, {1, 128 / channels});
  p.num_per_channels = channels;
  return p;
}

}  // namespace

int main(int argc, char** argv) try {
  static float x[128], sf[8];
  static numeric::e4m3 out[128];
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "list") {
    list();
  } else if (what == "load") {
    for (int i = 2; i < argc; ++i) {
      const status s = load_backend(argv[i]);
      std::cout << "load_backend: " << to_string(s.code()) << ": " << s.text() << "\n";
    }
    list();
  } else if (what == "explain") {
    any_problem p(get_operation("quant.per_token_cast"));
    const quant::per_token_cast made = problem(x, out, sf, std::atoi(argv[3]));
    std::memcpy(p.get(), &made, sizeof made);
    portile_device_info model;
    if (!device_model(argv[2], model)) throw std::runtime_error("no such model");
    std::cout << explain(model, p);
  } else if (what == "cast") {
    queue q{cpu_selector};
    const quant::per_token_cast p = problem(x, out, sf, 128);
    for (int i = 0; i < 2; ++i) {  // a broken environment is reported each time
      try {
        run(q, p, {.implementation = argc > 2 ? argv[2] : ""});
        std::cout << "ran\n";
      } catch (const error& e) {
        std::cout << to_string(e.code()) << ": " << e.what() << "\n";
      }
    }
    if (argc > 3) {
      set_forced_implementations("");
      run(q, p);
      std::cout << "ran after the API replaced the environment\n";
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::cout << "threw: " << e.what() << "\n";
  return 3;
}
