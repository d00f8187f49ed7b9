#include <portile/kernels/mhc/head_compute_mix.hpp>
#include <portile/kernels/mhc/head_compute_mix_backward.hpp>
#include <portile/kernels/mhc/pre_split_mixes.hpp>
#include <portile/kernels/mhc/pre_split_mixes_backward.hpp>

#include "backends/gpu/mhc.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

// The head's mixes are those of the first kind alone: rows of mhc_mult instead of mhc_mult * (mhc_mult + 2).

/// A thread computes `width` neighbouring mixes, all of one kind: 4, or 1 for any mhc_mult and any address.
template <int width>
struct split_kernel {
  static constexpr int threads = 256;
  struct params {
    rows<const float> x;
    mix_affine affine;
    rows<float> pre_mix, post_mix, comb_mix;
    std::int64_t pieces;
    divider row_pieces, mult;
    float pre_eps, post_mult_value;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.pieces;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_pieces.quotient(at), mult = p.affine.mult;
      const std::int64_t j = (at - t * p.row_pieces.value()) * width;
      float v[width];
      if constexpr (width == 4)
        load_values<float, 4>(p.x.at(t), j, v);
      else
        v[0] = p.x.at(t)[j];
      float* to;
      if (j < 2 * mult) {
        // Pieces of both kinds meet in a wave: one sigmoid for them.
        const bool post = j >= mult;
        to = post ? p.post_mix.at(t) + (j - mult) : p.pre_mix.at(t) + j;
        PORTILE_UNROLL
        for (int i = 0; i < width; ++i) {
          const float s = numeric::sigmoid_f32(p.affine(v[i], j + i));
          v[i] = post ? s * p.post_mult_value : s + p.pre_eps;
        }
      } else {
        const std::int64_t row = p.mult.quotient(j);
        to = p.comb_mix.at(t, row - 2) + (j - row * mult);
        PORTILE_UNROLL
        for (int i = 0; i < width; ++i) v[i] = p.affine(v[i], j + i);
      }
      if constexpr (width == 4)
        store_values<float, 4>(to, 0, v);
      else
        to[0] = v[0];
    }
  }
};

struct split_backward_params {
  rows<const float> x;
  mix_affine affine;
  rows<const float> pre_mix_grad, post_mix_grad, comb_mix_grad;
  rows<float> x_grad;
  float *scale_grad, *base_grad;
  double* partial;  ///< [parts, 2, mixes]: sums of z's gradient, and of its products with x
  std::int64_t tokens, mixes, part, parts;
  divider mult;
  float post_mult_value;
  bool accumulate;

  /// How a block of `threads` covers columns: `wide` of them at a time by `deep` threads each, no more of
  /// them than one thread adds up quickly.
  PORTILE_DEVICE static int wide(std::int64_t columns, int threads) {
    return columns < threads ? static_cast<int>(columns) : threads;
  }
  PORTILE_DEVICE static int deep(int wide, int threads) { return threads / wide < 16 ? threads / wide : 16; }
};

/// A block sums a part of the tokens; x_grad is complete.
struct split_backward_kernel {
  static constexpr int threads = 256, ahead = 8;
  using params = split_backward_params;
  static constexpr std::size_t shared_bytes = 2 * threads * sizeof(double);

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    double* const scratch = block.template shared<double>();
    const int wide = params::wide(p.mixes, threads), deep = params::deep(wide, threads);
    const int column = block.thread() % wide, depth = block.thread() / wide;
    for (std::int64_t part = block.index(); part < p.parts; part += block.grid()) {
      const std::int64_t first = part * p.part;
      const std::int64_t end = first + p.part < p.tokens ? first + p.part : p.tokens;
      for (std::int64_t j0 = 0; j0 < p.mixes; j0 += wide) {
        const std::int64_t j = j0 + column;
        double base = 0, scale = 0;
        if (j < p.mixes && depth < deep) sum_column(p, j, first + depth, end, deep, base, scale);
        scratch[block.thread()] = base;
        scratch[threads + block.thread()] = scale;
        block.barrier();
        if (depth == 0 && j < p.mixes) {
          for (int d = 1; d < deep; ++d) {
            base += scratch[d * wide + column];
            scale += scratch[threads + d * wide + column];
          }
          double* const to = p.partial + part * 2 * p.mixes;
          to[j] = base;
          to[p.mixes + j] = scale;
        }
        block.barrier();
      }
    }
  }

  static PORTILE_DEVICE void sum_column(const params& p, std::int64_t j, std::int64_t first, std::int64_t end,
                                        int step, double& base, double& scale) {
    const std::int64_t mult = p.affine.mult;
    const int kind = p.affine.segment(j);
    const std::int64_t row = p.mult.quotient(j);
    const rows<const float>& from = kind == 0   ? p.pre_mix_grad
                                    : kind == 1 ? p.post_mix_grad
                                                : p.comb_mix_grad;
    const float* const grads = from.data + (kind == 2 ? (row - 2) * from.stream : 0) + (j - row * mult);
    const float factor = p.affine.scale[kind];
    for (std::int64_t t = first; t < end; t += std::int64_t{ahead} * step) {
      float x[ahead], grad[ahead];
      PORTILE_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const std::int64_t u = t + std::int64_t{i} * step;
        x[i] = u < end ? p.x.at(u)[j] : 0.0f;
        grad[i] = u < end ? grads[u * from.token] : 0.0f;
      }
      PORTILE_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const std::int64_t u = t + std::int64_t{i} * step;
        if (u >= end) continue;
        float z_grad = grad[i];
        if (kind != 2) {
          const float s = numeric::sigmoid_f32(p.affine(x[i], j));
          z_grad = (kind == 0 ? grad[i] : p.post_mult_value * grad[i]) * (s * (1.0f - s));
        }
        p.x_grad.at(u)[j] = z_grad * factor;
        base += z_grad;
        scale += static_cast<double>(z_grad) * x[i];
      }
    }
  }
};

/// One block adds the parts in order.
struct split_total_kernel {
  static constexpr int threads = 1024, ahead = 8;
  using params = split_backward_params;
  static constexpr std::size_t shared_bytes = threads * sizeof(double);

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    if (block.index() > 0) return;
    double* const scratch = block.template shared<double>();
    const std::int64_t columns = 2 * p.mixes;
    const int wide = params::wide(columns, threads), deep = params::deep(wide, threads);
    const int column = block.thread() % wide, depth = block.thread() / wide;
    double scale = 0;  // of the kind of this thread's number
    for (std::int64_t c0 = 0; c0 < columns; c0 += wide) {
      const std::int64_t c = c0 + column;
      double sum = 0;
      if (c < columns && depth < deep) {
        for (std::int64_t q = depth; q < p.parts; q += ahead * deep) {
          double v[ahead];
          PORTILE_UNROLL
          for (int i = 0; i < ahead; ++i)
            v[i] = q + i * deep < p.parts ? p.partial[(q + i * deep) * columns + c] : 0.0;
          PORTILE_UNROLL
          for (int i = 0; i < ahead; ++i) sum += v[i];
        }
      }
      scratch[block.thread()] = sum;
      block.barrier();
      if (depth == 0 && c < columns) {
        for (int d = 1; d < deep; ++d) sum += scratch[d * wide + column];
        scratch[column] = sum;
        if (c < p.mixes) add(p.base_grad[c], sum, p.accumulate);
      }
      block.barrier();
      if (block.thread() < 3) {
        const std::int64_t kind = block.thread(), mult = p.affine.mult;
        const std::int64_t begin = p.mixes + kind * mult - c0;
        const std::int64_t end = kind < 2 ? begin + mult : columns - c0;
        const auto last = static_cast<int>(end < wide ? end : wide);
        for (int i = begin > 0 ? static_cast<int>(begin) : 0; i < last; ++i) scale += scratch[i];
      }
      block.barrier();
    }
    const bool head = p.mixes == p.affine.mult;
    if (block.thread() < (head ? 1 : 3)) add(p.scale_grad[block.thread()], scale, p.accumulate);
  }

  static PORTILE_DEVICE void add(float& to, double sum, bool accumulate) {
    to = static_cast<float>(accumulate ? to + sum : sum);
  }
};

mix_affine affine_of(const tensor& scale, const tensor& base, std::int64_t mult) {
  return {static_cast<const float*>(scale.data), static_cast<const float*>(base.data), mult};
}

template <int width>
void start_split(const context& c, typename split_kernel<width>::params p, std::int64_t tokens,
                 std::int64_t mixes) {
  p.pieces = tokens * (mixes / width);
  if (p.pieces == 0) return;
  p.row_pieces = divider(mixes / width, p.pieces);
  p.mult = divider(p.affine.mult, mixes);
  gpu::launch<split_kernel<width>>(c, numeric::ceil_div(p.pieces, split_kernel<width>::threads), 0, p);
}

struct pre_split_mixes_simt {
  static void launch(const context& c, const mhc::pre_split_mixes& p) {
    if (whole_chunks(p.x) && whole_chunks(p.pre_mix) && whole_chunks(p.post_mix) && whole_chunks(p.comb_mix))
      start<4>(c, p);
    else
      start<1>(c, p);
  }

 private:
  template <int width>
  static void start(const context& c, const mhc::pre_split_mixes& p) {
    typename split_kernel<width>::params q{};
    q.x = rows<const float>(p.x);
    q.affine = affine_of(p.scale, p.base, p.pre_mix.extent(1));
    q.pre_mix = rows<float>(p.pre_mix);
    q.post_mix = rows<float>(p.post_mix);
    q.comb_mix = rows<float>(p.comb_mix);
    q.pre_eps = static_cast<float>(p.pre_eps);
    q.post_mult_value = static_cast<float>(p.post_mult_value);
    start_split<width>(c, q, p.x.extent(0), p.x.extent(1));
  }
};

struct head_compute_mix_simt {
  static void launch(const context& c, const mhc::head_compute_mix& p) {
    if (whole_chunks(p.x) && whole_chunks(p.out))
      start<4>(c, p);
    else
      start<1>(c, p);
  }

 private:
  template <int width>
  static void start(const context& c, const mhc::head_compute_mix& p) {
    typename split_kernel<width>::params q{};
    q.x = rows<const float>(p.x);
    q.affine = affine_of(p.scale, p.base, p.x.extent(1));
    q.pre_mix = rows<float>(p.out);
    q.pre_eps = static_cast<float>(p.pre_eps);
    start_split<width>(c, q, p.x.extent(0), p.x.extent(1));
  }
};

/// Parts that the tokens are summed in: of at least 64 tokens, at most 128 of them.
std::int64_t part_of(std::int64_t tokens) {
  return std::max<std::int64_t>(64, numeric::ceil_div(tokens, 128));
}

std::uint64_t backward_workspace(const tensor& x) {
  return static_cast<std::uint64_t>(numeric::ceil_div(x.extent(0), part_of(x.extent(0))) * 2 * x.extent(1)) *
         sizeof(double);
}

void start_split_backward(const context& c, split_backward_params p, const tensor& x, const tensor& x_grad,
                          const tensor& scale_grad, const tensor& base_grad) {
  p.x = rows<const float>(x);
  p.x_grad = rows<float>(x_grad);
  p.scale_grad = static_cast<float*>(scale_grad.data);
  p.base_grad = static_cast<float*>(base_grad.data);
  p.partial = static_cast<double*>(c.call.workspace);
  p.tokens = x.extent(0);
  p.mixes = x.extent(1);
  p.part = part_of(p.tokens);
  p.parts = numeric::ceil_div(p.tokens, p.part);
  p.mult = divider(p.affine.mult, p.mixes);
  gpu::launch<split_backward_kernel>(c, p.parts, split_backward_kernel::shared_bytes, p);
  gpu::launch<split_total_kernel>(c, 1, split_total_kernel::shared_bytes, p);
}

struct pre_split_mixes_backward_simt {
  static std::uint64_t workspace(const portile_device_info&, const mhc::pre_split_mixes_backward& p) {
    return backward_workspace(p.x);
  }
  static void launch(const context& c, const mhc::pre_split_mixes_backward& p) {
    split_backward_params q{};
    q.affine = affine_of(p.scale, p.base, p.pre_mix_grad.extent(1));
    q.pre_mix_grad = rows<const float>(p.pre_mix_grad);
    q.post_mix_grad = rows<const float>(p.post_mix_grad);
    q.comb_mix_grad = rows<const float>(p.comb_mix_grad);
    q.post_mult_value = static_cast<float>(p.post_mult_value);
    q.accumulate = p.accumulate;
    start_split_backward(c, q, p.x, p.x_grad, p.scale_grad, p.base_grad);
  }
};

struct head_compute_mix_backward_simt {
  static std::uint64_t workspace(const portile_device_info&, const mhc::head_compute_mix_backward& p) {
    return backward_workspace(p.x);
  }
  static void launch(const context& c, const mhc::head_compute_mix_backward& p) {
    split_backward_params q{};
    q.affine = affine_of(p.scale, p.base, p.x.extent(1));
    q.pre_mix_grad = rows<const float>(p.out_grad);
    q.accumulate = p.accumulate;
    start_split_backward(c, q, p.x, p.x_grad, p.scale_grad, p.base_grad);
  }
};

}  // namespace

extern const portile_implementation mhc_pre_split_mixes_simt;
const portile_implementation mhc_pre_split_mixes_simt =
    make_simt<mhc::pre_split_mixes, pre_split_mixes_simt>();
extern const portile_implementation mhc_head_compute_mix_simt;
const portile_implementation mhc_head_compute_mix_simt =
    make_simt<mhc::head_compute_mix, head_compute_mix_simt>();
extern const portile_implementation mhc_pre_split_mixes_backward_simt;
const portile_implementation mhc_pre_split_mixes_backward_simt =
    make_simt<mhc::pre_split_mixes_backward, pre_split_mixes_backward_simt>();
extern const portile_implementation mhc_head_compute_mix_backward_simt;
const portile_implementation mhc_head_compute_mix_backward_simt =
    make_simt<mhc::head_compute_mix_backward, head_compute_mix_backward_simt>();

}  // namespace portile::gpu
