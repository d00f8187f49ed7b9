#include <portile/kernels/gemm/grouped_nt.hpp>

namespace portile::gemm {

void grouped_nt::check(checker& c) const {
  if (!check_factors(c, a, b, a_sf, b_sf)) return;
  const auto as_a = [&](const char* field, const tensor& t) {
    return c.need(!t.defined() || t.rank == a.rank, std::string(field) + ".rank", t.rank,
                  "must be " + std::to_string(a.rank) + ", the rank of a");
  };
  if (!as_a("out", out) || !as_a("a_sf", a_sf)) return;
  if (a.rank == 2) {
    if (!check_segments(c, expert_start, expert_end)) return;
    c.need(!masked_m.defined(), "masked_m", masked_m,
           "must be absent: a has two dimensions, rows of all experts");
    return;
  }
  c.need(masked_m.defined(), "masked_m", "absent",
         "is required: a has three dimensions, M_max rows for each expert");
  const auto absent = [&](const char* field, const tensor& t) {
    c.need(!t.defined(), field, t, "must be absent: a has three dimensions, M_max rows for each expert");
  };
  absent("expert_start", expert_start);
  absent("expert_end", expert_end);
  absent("num_live_per_expert", num_live_per_expert);
}

void grouped_nt::infer(inference& i) const { i.out("out", out.defined() ? out.dtype : dtype::f32); }

}  // namespace portile::gemm
