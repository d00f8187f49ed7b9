#include <portile/core/aliasing.hpp>
#include <portile/core/check.hpp>
#include <portile/kernels/engram/sinkhorn_finalize.hpp>

namespace portile::engram {

void sinkhorn_finalize::check(checker& c) const {
  c.need(!same_buffer(out, matrix) || out.strides == matrix.strides, "out.strides", out,
         "must be those of matrix in place");
}

void sinkhorn_finalize::infer(inference& i) const { i.out("out", dtype::f32); }

}  // namespace portile::engram
