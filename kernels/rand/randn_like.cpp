#include <portile/core/check.hpp>
#include <portile/kernels/rand/randn_like.hpp>

namespace portile::rand {

void randn_like::check(checker& c) const {
  c.need(out.dtype == x.dtype, "out.dtype", out.dtype,
         "must be " + std::string(to_string(x.dtype)) + ", the dtype of x");
  c.need(out.rank == x.rank, "out.rank", out.rank, "must be that of x, " + std::to_string(x.rank));
  for (int i = 0; c.ok() && i < x.rank; ++i)
    c.need(out.extent(i) == x.extent(i), "out.extents[" + std::to_string(i) + "]", out.extent(i),
           "must be that of x, " + std::to_string(x.extent(i)));
}

void randn_like::infer(inference& i) const {
  const std::vector<std::int64_t> extents(x.extents.begin(), x.extents.begin() + x.rank);
  const extents_t strides = contiguous_strides(extents);
  i.out("out", x.dtype, extents, {strides.begin(), strides.begin() + x.rank});
}

}  // namespace portile::rand
