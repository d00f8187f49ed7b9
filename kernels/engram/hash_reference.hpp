#pragma once
#include <portile/kernels/engram/hash.hpp>

#include "backends/reference/space.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const hash& p) {
  using namespace portile::reference;
  const std::int64_t num_tokens = p.out.extent(1), ngram = p.ngram_token_ids.extent(1),
                     tables = p.vocab_sizes.extent(2);
  const auto ids = make_view<std::int32_t, 2>(p.ngram_token_ids);
  const auto multipliers = make_view<std::int64_t, 2>(p.multipliers);
  const auto vocab = make_view<std::int32_t, 3>(p.vocab_sizes);
  const auto offsets = make_view<std::int32_t, 2>(p.offsets);
  const auto mask = make_view<unsigned char, 1>(p.image_token_mask);
  const auto out = make_view<std::int32_t, 3>(p.out);
  const bool has_mask = p.image_token_mask.defined();
  const trap_sink trap = space.trap;

  space.for_each(
      p.out.extent(0), num_tokens, KOKKOS_LAMBDA(std::int64_t l, std::int64_t t) {
        const auto product = [&](std::int64_t q) {  // unsigned: wraps
          return static_cast<std::uint64_t>(static_cast<std::int64_t>(ids(t, q))) *
                 static_cast<std::uint64_t>(multipliers(l, q));
        };
        const std::int64_t columns = (ngram - 1) * tables;
        std::uint64_t h = product(0);
        for (std::int64_t q = 1; q < ngram; ++q) {
          h ^= product(q);
          for (std::int64_t e = 0; e < tables; ++e) {
            const std::int64_t column = (q - 1) * tables + e, size = vocab(l, q - 1, e);
            std::int32_t& row = out(l, t, column);
            row = -1;
            if (has_mask && mask(t)) continue;
            if (size < 1) {
              trap.raise(0, l * columns + column);
              continue;
            }
            const std::int64_t r = static_cast<std::int64_t>(h) % size;
            const std::int64_t sum = (r < 0 ? r + size : r) + offsets(l, column);
            if (sum == static_cast<std::int32_t>(sum))
              row = static_cast<std::int32_t>(sum);
            else
              trap.raise(1, (l * num_tokens + t) * columns + column);
          }
        }
      });
}

}  // namespace portile::engram
