#include <portile/kernels/mhc/reduce_partials_and_rmsnorm.hpp>
#include <portile/kernels/mhc/reduce_partials_and_rmsnorm_backward.hpp>

#include "backends/gpu/mhc.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// A thread adds the parts of `width` neighbouring products: 4, or 1 for any address. Each adds the squares
/// of its token too: they lie in the cache.
template <int width>
struct reduce_kernel {
  static constexpr int threads = 256, ahead = width == 4 ? 8 : 16;
  struct params {
    partial_sums from;
    rows<float> out_mul, sqrsum, out;  ///< the first two without data: not wanted
    std::int64_t pieces;
    divider row_pieces;
    float size, eps;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const partial_sums& from = p.from;
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.pieces;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_pieces.quotient(at), j = (at - t * p.row_pieces.value()) * width;
      float out[width] = {};
      for (std::int64_t g = 0; g < from.groups; ++g) {
        const float* const products = from.out_mul + t * from.mul_token + g * from.mul_group + j;
        const float* const squares = from.sqrsum + t * from.square_token + g;
        float sum[width] = {}, sqrsum = 0.0f;
        for (std::int64_t s = 0; s < from.splits; s += ahead) {
          float v[ahead][width], square[ahead];
          PORTILE_UNROLL
          for (int i = 0; i < ahead; ++i) {
            if (s + i >= from.splits) continue;
            if constexpr (width == 4)
              load_values<float, 4>(products + (s + i) * from.mul_split, 0, v[i]);
            else
              v[i][0] = products[(s + i) * from.mul_split];
            square[i] = squares[(s + i) * from.square_split];
          }
          PORTILE_UNROLL
          for (int i = 0; i < ahead; ++i) {
            if (s + i >= from.splits) continue;
            PORTILE_UNROLL
            for (int n = 0; n < width; ++n) sum[n] += v[i][n];
            sqrsum += square[i];
          }
        }
        const float r = rms_rstd(sqrsum, p.size, p.eps);
        PORTILE_UNROLL
        for (int n = 0; n < width; ++n) out[n] = g == 0 ? sum[n] * r : out[n] + sum[n] * r;
        if (p.out_mul.data) store(p.out_mul.at(t, g) + j, sum);
        if (p.sqrsum.data && j == 0) p.sqrsum.at(t)[g] = sqrsum;
      }
      store(p.out.at(t) + j, out);
    }
  }

  static PORTILE_DEVICE void store(float* to, const float (&v)[width]) {
    if constexpr (width == 4)
      store_values<float, 4>(to, 0, v);
    else
      to[0] = v[0];
  }
};

/// Eight lanes take a group of a token.
struct rmsnorm_backward_kernel {
  static constexpr int threads = 256, lanes = 8, ahead = 4;
  struct params {
    rows<const float> out_grad, out_mul, sqrsum;
    rows<float> out_mul_grad, sqrsum_grad;
    std::int64_t mixes, work;
    divider groups;
    float size, eps;
    bool to_tf32;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    constexpr int each = threads / lanes;
    for (std::int64_t base = block.index() * each; base < p.work; base += block.grid() * each) {
      const std::int64_t work = base + block.thread() / lanes;
      const int lane = block.thread() % lanes;
      const bool live = work < p.work;
      const std::int64_t t = live ? p.groups.quotient(work) : 0;
      const std::int64_t g = live ? work - t * p.groups.value() : 0;
      const float sqrsum = live ? p.sqrsum.at(t)[g] : 1.0f;
      const float r = rms_rstd(sqrsum, p.size, p.eps);
      double r_grad = 0;
      for (std::int64_t j = lane; live && j < p.mixes; j += ahead * lanes) {
        float grad[ahead], mul[ahead];
        PORTILE_UNROLL
        for (int i = 0; i < ahead; ++i) {
          const bool there = j + i * lanes < p.mixes;
          grad[i] = there ? p.out_grad.at(t)[j + i * lanes] : 0.0f;
          mul[i] = there ? p.out_mul.at(t, g)[j + i * lanes] : 0.0f;
        }
        PORTILE_UNROLL
        for (int i = 0; i < ahead; ++i) {
          if (j + i * lanes >= p.mixes) continue;
          r_grad += static_cast<double>(grad[i]) * mul[i];
          const float product = grad[i] * r;
          p.out_mul_grad.at(t, g)[j + i * lanes] = p.to_tf32 ? numeric::to_tf32_nearest(product) : product;
        }
      }
      r_grad = reduce_lanes(block, r_grad, lanes, plus{});
      if (live && lane == 0)
        p.sqrsum_grad.at(t)[g] = sqrsum_gradient(static_cast<float>(r_grad), r, sqrsum, p.size, p.eps);
    }
  }
};

struct reduce_partials_and_rmsnorm_simt {
  static void launch(const context& c, const mhc::reduce_partials_and_rmsnorm& p) {
    const tensor &mul = p.out_mul_splitted, &squares = p.sqrsum_splitted;
    partial_sums from;
    from.out_mul = static_cast<float*>(mul.data);
    from.sqrsum = static_cast<float*>(squares.data);
    from.splits = mul.extent(0);
    from.tokens = mul.extent(1);
    from.groups = mul.extent(2);
    from.mixes = mul.extent(3);
    from.mul_split = mul.stride(0);
    from.mul_token = mul.stride(1);
    from.mul_group = mul.stride(2);
    from.square_split = squares.stride(0);
    from.square_token = squares.stride(1);
    launch_reduce_partials(c, from, p.out_mul, p.sqrsum, p.out, static_cast<float>(p.rms_group_size),
                           static_cast<float>(p.norm_eps));
  }
};

struct reduce_partials_and_rmsnorm_backward_simt {
  static void launch(const context& c, const mhc::reduce_partials_and_rmsnorm_backward& p) {
    launch_rmsnorm_backward(c, p.out_grad, rows<const float>(p.out_mul), rows<const float>(p.sqrsum),
                            p.sqrsum.extent(1), static_cast<float>(p.rms_group_size),
                            static_cast<float>(p.norm_eps), false, rows<float>(p.out_mul_grad),
                            rows<float>(p.sqrsum_grad));
  }
};

}  // namespace

void mhc_steps::launch_reduce_partials(const context& c, const partial_sums& from, const tensor& out_mul,
                                       const tensor& sqrsum, const tensor& out, float size, float eps) {
  const auto start = [&](auto constant) {
    constexpr int width = decltype(constant)::value;
    using kernel = reduce_kernel<width>;
    typename kernel::params p{};
    p.from = from;
    if (out_mul) p.out_mul = rows<float>(out_mul);
    // [tokens] instead of [tokens, groups]: one group.
    if (sqrsum) p.sqrsum = rows<float>(static_cast<float*>(sqrsum.data), sqrsum.stride(0), 0);
    p.out = rows<float>(out);
    const std::int64_t row_pieces = from.mixes / width;
    p.pieces = from.tokens * row_pieces;
    if (p.pieces == 0) return;
    p.row_pieces = divider(row_pieces, p.pieces);
    p.size = size;
    p.eps = eps;
    gpu::launch<kernel>(c, numeric::ceil_div(p.pieces, kernel::threads), 0, p);
  };
  const bool aligned = reinterpret_cast<std::uintptr_t>(from.out_mul) % 16 == 0 && from.mixes % 4 == 0 &&
                       from.mul_split % 4 == 0 && from.mul_token % 4 == 0 && from.mul_group % 4 == 0 &&
                       whole_chunks(out_mul) && whole_chunks(out);
  if (aligned)
    start(std::integral_constant<int, 4>{});
  else
    start(std::integral_constant<int, 1>{});
}

void mhc_steps::launch_rmsnorm_backward(const context& c, const tensor& out_grad,
                                        const rows<const float>& out_mul, const rows<const float>& sqrsum,
                                        std::int64_t groups, float size, float eps, bool to_tf32,
                                        const rows<float>& out_mul_grad, const rows<float>& sqrsum_grad) {
  using kernel = rmsnorm_backward_kernel;
  const std::int64_t work = out_grad.extent(0) * groups;
  if (work == 0) return;
  const kernel::params p{
      rows<const float>(out_grad), out_mul, sqrsum, out_mul_grad, sqrsum_grad, out_grad.extent(1), work,
      divider(groups, work),       size,    eps,    to_tf32};
  gpu::launch<kernel>(c, numeric::ceil_div(work, kernel::threads / kernel::lanes), 0, p);
}

extern const portile_implementation mhc_reduce_partials_and_rmsnorm_simt;
const portile_implementation mhc_reduce_partials_and_rmsnorm_simt =
    make_simt<mhc::reduce_partials_and_rmsnorm, reduce_partials_and_rmsnorm_simt>();
extern const portile_implementation mhc_reduce_partials_and_rmsnorm_backward_simt;
const portile_implementation mhc_reduce_partials_and_rmsnorm_backward_simt =
    make_simt<mhc::reduce_partials_and_rmsnorm_backward, reduce_partials_and_rmsnorm_backward_simt>();

}  // namespace portile::gpu
