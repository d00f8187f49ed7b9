#include <portile/core/check.hpp>
#include <portile/kernels/engram/gather.hpp>

namespace portile::engram {

void gather::infer(inference& i) const { i.out("out", dtype::bf16); }

}  // namespace portile::engram
