#include <portile/kernels/moe/mask_indices_by_tp.hpp>

#include "backends/gpu/moe/routes.hpp"

namespace portile::gpu {
namespace {

template <class Id>
struct mask_params {
  const Id* indices;
  Id* out;
  std::int64_t stride, out_stride;
  divider row_ids;
  std::int64_t ids;  ///< in all
  tensor_parallel_mask to_local;
};

/// Without gaps and aligned: 16 bytes a thread.
template <class Id>
struct mask_flat {
  static constexpr int threads = 256, own = 16 / sizeof(Id);
  using params = mask_params<Id>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * threads * own;
    for (std::int64_t i = (block.index() * threads + block.thread()) * own; i < p.ids; i += step) {
      if (i + own > p.ids) {
        for (std::int64_t j = i; j < p.ids; ++j) p.out[j] = static_cast<Id>(p.to_local(p.indices[j]));
        continue;
      }
      words4 w = load16(p.indices + i);
      if constexpr (sizeof(Id) == 4) {
        PORTILE_UNROLL
        for (int j = 0; j < own; ++j)
          w.w[j] = static_cast<std::uint32_t>(p.to_local(static_cast<std::int32_t>(w.w[j])));
      } else {
        PORTILE_UNROLL
        for (int j = 0; j < own; ++j) {
          const auto id = static_cast<std::int64_t>(w.w[2 * j] | std::uint64_t{w.w[2 * j + 1]} << 32);
          const auto local = static_cast<std::uint64_t>(p.to_local(id));
          w.w[2 * j] = static_cast<std::uint32_t>(local);
          w.w[2 * j + 1] = static_cast<std::uint32_t>(local >> 32);
        }
      }
      store16(p.out + i, w);
    }
  }
};

template <class Id>
struct mask_rows {
  static constexpr int threads = 256;
  using params = mask_params<Id>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t i = block.index() * threads + block.thread(); i < p.ids; i += block.grid() * threads) {
      const std::int64_t t = p.row_ids.quotient(i), j = i - t * p.row_ids.value();
      p.out[t * p.out_stride + j] = static_cast<Id>(p.to_local(p.indices[t * p.stride + j]));
    }
  }
};

struct mask_indices_by_tp_simt {
  static void launch(const context& c, const moe::mask_indices_by_tp& p) {
    visit<std::int64_t, std::int32_t>(p.indices.dtype, [&](auto id) { typed<decltype(id)>(c, p); });
  }

 private:
  template <class Id>
  static void typed(const context& c, const moe::mask_indices_by_tp& p) {
    const std::int64_t k = p.indices.extent(1), ids = p.indices.numel();
    if (ids == 0) return;
    const mask_params<Id> q{static_cast<const Id*>(p.indices.data),
                            static_cast<Id*>(p.out.data),
                            p.indices.stride(0),
                            p.out.stride(0),
                            divider(k, ids),
                            ids,
                            {p.num_experts / p.num_ep_ranks, p.tp_rank, p.num_tp_ranks}};
    const auto aligned = [](const tensor& t) {
      return t.contiguous() && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
    };
    using flat = mask_flat<Id>;
    if (aligned(p.indices) && aligned(p.out))
      return gpu::launch<flat>(c, numeric::ceil_div(ids, std::int64_t{flat::threads} * flat::own), 0, q);
    gpu::launch<mask_rows<Id>>(c, numeric::ceil_div(ids, mask_rows<Id>::threads), 0, q);
  }
};

}  // namespace

extern const portile_implementation moe_mask_indices_by_tp_simt;
const portile_implementation moe_mask_indices_by_tp_simt =
    make_simt<moe::mask_indices_by_tp, mask_indices_by_tp_simt>();

}  // namespace portile::gpu
