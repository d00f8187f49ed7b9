#include <portile/core/check.hpp>
#include <portile/kernels/engram/make_offsets.hpp>

namespace portile::engram {

void make_offsets::infer(inference& i) const { i.out("offsets", dtype::i32); }

}  // namespace portile::engram
