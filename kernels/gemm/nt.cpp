#include <portile/kernels/gemm/nt.hpp>

namespace portile::gemm {

void nt::check(checker& c) const { check_factors(c, a, b, a_sf, b_sf); }

void nt::infer(inference& i) const { i.out("out", out.defined() ? out.dtype : dtype::f32); }

}  // namespace portile::gemm
