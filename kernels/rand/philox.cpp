#include <portile/core/check.hpp>
#include <portile/kernels/rand/philox.hpp>

namespace portile::rand {

void philox::infer(inference& i) const { i.out("out", dtype::u32); }

}  // namespace portile::rand
