#include <portile/core/numeric/f16.hpp>
#include <portile/core/numeric/normal.hpp>
#include <portile/kernels/rand/randn.hpp>
#include <portile/kernels/rand/randn_like.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// Four numbers a thread: what one call of the generator gives.
template <class T>
struct randn_fours {
  static constexpr int threads = 256;
  struct params {
    T* out;
    std::uint64_t seed, offset;
    std::int64_t count;
    int rank;  ///< of the strides below; 0: contiguous and aligned for vectors
    divider extent[max_rank];
    std::int64_t stride[max_rank];
  };

  static PORTILE_DEVICE T convert(float z) {
    if constexpr (std::is_same_v<T, numeric::bf16>)
      return numeric::to_bf16(z);
    else if constexpr (std::is_same_v<T, numeric::f16>)
      return numeric::to_f16(z);
    else
      return z;
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t fours = (p.count + 3) / 4;
    for (std::int64_t b = block.index() * threads + block.thread(); b < fours; b += block.grid() * threads) {
      const auto n =
          numeric::box_muller(numeric::philox4x32_10(p.seed, static_cast<std::uint64_t>(b), p.offset));
      const std::int64_t first = 4 * b;
      if (p.rank == 0 && first + 4 <= p.count) {
        store(p.out + first, n.z);
        continue;
      }
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (first + i >= p.count) break;
        std::int64_t at = p.rank == 0 ? first + i : 0, rest = first + i;
        for (int d = p.rank; d-- > 0;) {
          const std::int64_t outer = p.extent[d].quotient(rest);
          at += (rest - outer * p.extent[d].value()) * p.stride[d];
          rest = outer;
        }
        p.out[at] = convert(n.z[i]);
      }
    }
  }

 private:
  static PORTILE_DEVICE void store(T* to, const float (&z)[4]) {
    if constexpr (sizeof(T) == 4) {
      store_values<float, 4>(to, 0, z);
    } else if constexpr (sizeof(T) == 2) {
      words2 w;
      PORTILE_UNROLL
      for (int i = 0; i < 2; ++i)
        w.w[i] = std::uint32_t{convert(z[2 * i]).bits} | std::uint32_t{convert(z[2 * i + 1]).bits} << 16;
      store8(to, w);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) to[i] = z[i];
    }
  }
};

struct randn_simt {
  static void launch(const context& c, const auto& p) {
    const tensor& out = p.out;
    const std::int64_t count = out.numel();
    if (count == 0) return;
    visit<float, numeric::bf16, numeric::f16, double>(out.dtype, [&](auto type) {
      using kernel = randn_fours<decltype(type)>;
      typename kernel::params k{};
      k.out = static_cast<decltype(type)*>(out.data);
      k.seed = static_cast<std::uint64_t>(p.seed);
      k.offset = static_cast<std::uint64_t>(p.offset);
      k.count = count;
      const bool vectors = out.contiguous() && reinterpret_cast<std::uintptr_t>(out.data) % 16 == 0;
      k.rank = vectors ? 0 : out.rank;
      for (int d = 0; d < k.rank; ++d) {
        k.extent[d] = divider(out.extent(d), count);
        k.stride[d] = out.stride(d);
      }
      gpu::launch<kernel>(c, numeric::ceil_div(count, 4 * kernel::threads), 0, k);
    });
  }
};

}  // namespace

extern const portile_implementation rand_randn_simt, rand_randn_like_simt;
const portile_implementation rand_randn_simt = make_simt<rand::randn, randn_simt>();
const portile_implementation rand_randn_like_simt = make_simt<rand::randn_like, randn_simt>();

}  // namespace portile::gpu
