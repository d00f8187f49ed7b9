#include <iostream>
#include <vector>

#include <portile/portile.hpp>

int main() {
  portile::queue q{portile::default_selector};  // the best device of this node
  const portile::device where = q.get_device();
  const std::int64_t tokens = 4, hidden = 256, groups = hidden / 128;
  std::vector<float> x(tokens * hidden, 3.0f), scales(tokens * groups);
  void* values = portile::malloc_device(x.size() * sizeof(float), q);
  void* codes = portile::malloc_device(x.size(), q);
  void* sf = portile::malloc_device(scales.size() * sizeof(float), q);
  portile::memcpy(q, values, x.data(), x.size() * sizeof(float));

  portile::quant::per_token_cast cast;  // a problem struct is the operation
  cast.x = portile::make_tensor(values, portile::dtype::f32, {tokens, hidden}, where);
  cast.out = portile::make_tensor(codes, portile::dtype::e4m3, {tokens, hidden}, where);
  cast.out_sf = portile::make_tensor(sf, portile::dtype::f32, {tokens, groups}, where);
  std::cout << portile::explain(q, cast);  // every implementation, why it was refused, and the one chosen
  portile::run(q, cast);

  portile::memcpy(q, scales.data(), sf, scales.size() * sizeof(float));
  q.wait();
  std::cout << "first scale: " << scales[0] << "\n";
  for (void* p : {values, codes, sf}) portile::free(p, q);
}
