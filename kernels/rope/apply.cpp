#include <limits>

#include <portile/core/check.hpp>
#include <portile/kernels/rope/apply.hpp>

namespace portile::rope {

void apply::check(checker& c) const {
  using int32 = std::numeric_limits<std::int32_t>;
  const std::int64_t head = c.dim("head_dim"), rot = c.dim("rot_dim");
  c.need(!key.defined() || key.rank == query.rank, "key.rank", key.rank,
         "must be that of query, " + std::to_string(query.rank));
  c.need(!key.defined() || key.dtype == query.dtype, "key.dtype", key.dtype,
         "must be " + std::string(to_string(query.dtype)) + ", the dtype of query");
  c.need(!positions.defined() || positions.rank == query.rank - 2, "positions.rank", positions.rank,
         "must be " + std::to_string(query.rank - 2) + " with a query of rank " + std::to_string(query.rank));
  c.need_multiple("rot_dim", rot, 2);
  c.need(rot_offset >= 0 && rot_offset <= head - rot, "rot_offset", rot_offset,
         "the rotated columns must lie in a head: 0 to head_dim - rot_dim = " + std::to_string(head - rot));
  c.need(seqlen_offset >= int32::min() && seqlen_offset <= int32::max(), "seqlen_offset", seqlen_offset,
         "must fit an int32");
}

void apply::infer(inference& i) const {
  // In place: the results have the layout of the arguments.
  for (const auto& [field, t] : {std::pair{"query", query}, {"key", key}})
    if (t.defined())
      i.out(field, t.dtype, {t.extents.begin(), t.extents.begin() + t.rank},
            {t.strides.begin(), t.strides.begin() + t.rank});
}

}  // namespace portile::rope
