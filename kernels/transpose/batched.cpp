#include <portile/kernels/transpose/batched.hpp>
#include <portile/kernels/transpose/rules.hpp>

namespace portile::transpose {

void batched::check(checker& c) const { check_transpose(c, x, out); }

void batched::infer(inference& i) const { i.out("out", x ? x.dtype : out ? out.dtype : dtype::bf16); }

}  // namespace portile::transpose
