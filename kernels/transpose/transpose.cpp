#include <portile/kernels/transpose/rules.hpp>
#include <portile/kernels/transpose/transpose.hpp>

namespace portile::transpose {

void transpose::check(checker& c) const { check_transpose(c, x, out); }

void transpose::infer(inference& i) const { i.out("out", x ? x.dtype : out ? out.dtype : dtype::bf16); }

}  // namespace portile::transpose
