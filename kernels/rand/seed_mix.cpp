#include <portile/core/check.hpp>
#include <portile/kernels/rand/seed_mix.hpp>

namespace portile::rand {

void seed_mix::infer(inference& i) const { i.out("out", dtype::u32); }

}  // namespace portile::rand
