#include <portile/core/check.hpp>
#include <portile/kernels/rand/randn.hpp>

namespace portile::rand {

void randn::infer(inference& i) const {
  const dtype type = out.defined() ? out.dtype : dtype::f32;
  if (!out.defined()) {
    i.out("out", type);
    return;
  }
  i.out("out", type, {out.extents.begin(), out.extents.begin() + out.rank},
        {out.strides.begin(), out.strides.begin() + out.rank});
}

}  // namespace portile::rand
