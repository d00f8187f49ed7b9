#include <portile/kernels/norm/forward.hpp>

#include "backends/gpu/norm/rms_norm.hpp"

namespace portile::gpu {
namespace {

template <class T>
struct norm_forward_params {
  rms_norm_params<T> norm;
  row_pointers<T> out;
};

template <class T, bool whole_block, bool aligned>
struct norm_forward {
  using row = rms_norm_row<T, whole_block, aligned>;
  using params = norm_forward_params<T>;
  static constexpr int threads = row::threads, min_blocks = row::narrow ? 4 : 2;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    row::for_each_row(block, p.norm, [&](std::int64_t b, std::int64_t t) {
      const row r(block, p.norm, b, t);
      T* out = p.out(b, t);
      PORTILE_UNROLL
      for (int c = 0; c < row::chunks; ++c) {
        const std::int64_t j = row::first_value(block, c);
        if (j < p.norm.hidden) r.normalised(block, p.norm, c).template store<aligned>(out + j);
      }
    });
  }
};

struct forward_simt {
  static void launch(const context& c, const norm::forward& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto type) {
      using T = decltype(type);
      const norm_forward_params<T> k{rms_norm_params<T>(p), row_pointers<T>(p.out)};
      launch_rows<norm_forward, T>(c, k, rms_norm_params<T>::aligned(p) && all_rows_aligned(p.out));
    });
  }
};

}  // namespace

extern const portile_implementation norm_forward_simt;
const portile_implementation norm_forward_simt = make_simt<norm::forward, forward_simt>();

}  // namespace portile::gpu
