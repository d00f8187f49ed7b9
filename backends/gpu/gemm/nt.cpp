#include "backends/gpu/gemm/nt.hpp"

namespace portile::gpu {

extern const portile_implementation gemm_nt_simt;
const portile_implementation gemm_nt_simt = make_simt<gemm::nt, nt_by<nt_product>>();

}  // namespace portile::gpu
