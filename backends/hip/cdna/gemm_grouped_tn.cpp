#include "backends/gpu/gemm/grouped_tn.hpp"

#include "backends/hip/cdna/entry.hpp"

namespace portile::gpu {
namespace {
template <class Part>
portile_implementation make() {
  return hip::make_mfma<Part, gemm::grouped_tn, grouped_tn_by<hip::for_part<Part>::template transposed>>();
}
}  // namespace

extern const portile_implementation gemm_grouped_tn_mfma_gfx90a;
extern const portile_implementation gemm_grouped_tn_mfma_gfx942;
extern const portile_implementation gemm_grouped_tn_mfma_gfx950;
const portile_implementation gemm_grouped_tn_mfma_gfx90a = make<hip::gfx90a>();
const portile_implementation gemm_grouped_tn_mfma_gfx942 = make<hip::gfx942>();
const portile_implementation gemm_grouped_tn_mfma_gfx950 = make<hip::gfx950>();

}  // namespace portile::gpu
