#pragma once
#include <portile/core/numeric/f16.hpp>
#include <portile/kernels/rope/apply.hpp>

#include "backends/reference/space.hpp"

namespace portile::rope {

template <class Space>
void compute(const Space& space, const apply& p) {
  using namespace portile::reference;
  const auto cache = make_view<float, 2>(p.cos_sin_cache);
  const std::int64_t num_positions = p.cos_sin_cache.extent(0), half = p.cos_sin_cache.extent(1) / 2;
  const int first = p.query.rank - 3;  // dimension of the tokens; a batch may stand before it
  const std::int64_t num_batches = first > 0 ? p.query.extent(0) : 1, num_tokens = p.query.extent(first);
  const auto* positions32 =
      p.positions.dtype == dtype::i32 ? static_cast<const std::int32_t*>(p.positions.data) : nullptr;
  const auto* positions64 =
      p.positions.dtype == dtype::i64 ? static_cast<const std::int64_t*>(p.positions.data) : nullptr;
  const std::int64_t position_batch = first > 0 && p.positions.defined() ? p.positions.stride(0) : 0;
  const std::int64_t position_step = p.positions.defined() ? p.positions.stride(first) : 0;
  const std::int64_t offset = p.seqlen_offset, rot_offset = p.rot_offset;
  const bool interleaved = p.interleaved, conjugate = p.conjugate;
  const auto trap = space.trap;

  for (const tensor& heads : {p.query, p.key}) {
    if (!heads.defined()) continue;
    visit<float, numeric::bf16, numeric::f16>(heads.dtype, [&](auto type) {
      using value = decltype(type);
      auto* data = static_cast<value*>(heads.data);
      const std::int64_t batch_stride = first > 0 ? heads.stride(0) : 0, token_stride = heads.stride(first);
      const std::int64_t head_stride = heads.stride(first + 1), num_heads = heads.extent(first + 1);
      space.for_each(
          num_batches, num_tokens, KOKKOS_LAMBDA(std::int64_t batch, std::int64_t t) {
            const std::int64_t at = batch * position_batch + t * position_step;
            const std::int64_t position = positions32 ? positions32[at] : positions64 ? positions64[at] : t;
            if (position < -offset || position >= num_positions - offset) {
              trap.raise(0, batch * num_tokens + t);
              return;
            }
            const std::int64_t row = position + offset;
            for (std::int64_t h = 0; h < num_heads; ++h) {
              value* x = data + batch * batch_stride + t * token_stride + h * head_stride + rot_offset;
              for (std::int64_t i = 0; i < half; ++i) {
                value& first_of_pair = x[interleaved ? 2 * i : i];
                value& second_of_pair = x[interleaved ? 2 * i + 1 : half + i];
                const float a = load(first_of_pair), b = load(second_of_pair);
                const float c = cache(row, i), s = conjugate ? -cache(row, half + i) : cache(row, half + i);
                store(first_of_pair, ::fmaf(a, c, -(b * s)));
                store(second_of_pair, ::fmaf(a, s, b * c));
              }
            }
          });
    });
  }
}

}  // namespace portile::rope
