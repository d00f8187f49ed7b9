#include <portile/kernels/gemm/grouped_tn.hpp>

namespace portile::gemm {

void grouped_tn::check(checker& c) const {
  c.need(b.dtype == a.dtype, "b.dtype", b.dtype,
         "must be " + std::string(to_string(a.dtype)) + ", the type of a");
}

void grouped_tn::infer(inference& i) const { i.out("out", dtype::f32); }

}  // namespace portile::gemm
