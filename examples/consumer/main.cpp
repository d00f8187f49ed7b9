// A project of its own: needs a C++20 compiler and the installed Portile.
#include <iostream>

#include <portile/core/numeric/e4m3.hpp>
#include <portile/portile.hpp>

int main() try {
  float x[2 * 128], scales[2];
  portile::numeric::e4m3 codes[2 * 128];
  for (int i = 0; i < 256; ++i) x[i] = static_cast<float>(i % 7);
  portile::queue q{portile::cpu_selector};
  portile::quant::per_token_cast cast;
  cast.x = portile::make_tensor(x, {2, 128});
  cast.out = portile::make_tensor(codes, {2, 128});
  cast.out_sf = portile::make_tensor(scales, {2, 1});
  for (const auto& backend : portile::backends())
    std::cout << backend.name << " " << backend.file << " " << backend.reason << "\n";
  std::cout << portile::explain(q, cast);
  portile::run(q, cast);
  std::cout << "codes[6] = " << portile::numeric::to_float(codes[6]) << ", scale " << scales[0] << "\n";
} catch (const portile::error& e) {
  std::cerr << portile::to_string(e.code()) << ": " << e.what() << "\n";
  return 1;
}
