#include <portile/core/numeric/f16.hpp>
#include <portile/kernels/rope/apply.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

template <class T>
struct rope_heads {
  T* data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;  ///< strides
  std::int64_t count = 0;
};

/// A thread rotates as many pairs of each of its heads as 16 bytes hold values (`vector`), or one pair. The
/// angles are the same for all heads: a thread takes up to four, a fourth of the token's heads apart, so that
/// neighbouring lanes have neighbouring heads.
template <class T, bool vector>
struct rope_pairs {
  static constexpr int threads = 256, most = vector ? 4 : 1;
  static constexpr int pairs = vector ? 16 / static_cast<int>(sizeof(T)) : 1;

  struct params {
    rope_heads<T> query, key;
    const float* cache;
    const std::int32_t* positions32;
    const std::int64_t* positions64;
    std::int64_t cache_stride, position_batch, position_step;
    std::int64_t num_positions, half, seqlen_offset, items;
    std::int64_t query_groups, key_groups;  ///< of heads, each of a thread
    divider per_token, per_head, tokens;
    std::uint64_t* trap;
    bool interleaved, conjugate;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t item = block.index() * threads + block.thread(); item < p.items;
         item += block.grid() * threads) {
      const std::int64_t token = p.per_token.quotient(item), rest = item - token * p.per_token.value();
      const std::int64_t batch = p.tokens.quotient(token), t = token - batch * p.tokens.value();
      const std::int64_t group = p.per_head.quotient(rest), i = (rest - group * p.per_head.value()) * pairs;
      const bool of_query = group < p.query_groups;

      // The heads are loaded before the position is known.
      const rope_heads<T>& heads = of_query ? p.query : p.key;
      const std::int64_t head = of_query ? group : group - p.query_groups;
      const std::int64_t step = of_query ? p.query_groups : p.key_groups;
      const std::int64_t left = i < p.half ? heads.count - head : 0;
      T* const first = heads.data + batch * heads.batch + t * heads.token + head * heads.head +
                       (p.interleaved ? 2 * i : i);
      const std::int64_t second = p.interleaved ? pairs : p.half, next = step * heads.head;
      raw x[most][2] = {};
      PORTILE_UNROLL
      for (int h = 0; h < most; ++h) {
        if (h * step >= left) continue;
        x[h][0] = load(first + h * next);
        x[h][1] = load(first + h * next + second);
      }
      const std::int64_t at = batch * p.position_batch + t * p.position_step;
      const std::int64_t position = p.positions32 ? p.positions32[at] : p.positions64 ? p.positions64[at] : t;
      if (position < -p.seqlen_offset || position >= p.num_positions - p.seqlen_offset) {
        raise_trap(p.trap, 0, token);
        continue;
      }
      if (left <= 0) continue;
      const float* cosines = p.cache + (position + p.seqlen_offset) * p.cache_stride + i;
      float c[pairs], s[pairs];
      if constexpr (vector) {
        load_values<float, pairs>(cosines, 0, c);
        load_values<float, pairs>(cosines, p.half, s);
      } else {
        c[0] = cosines[0];
        s[0] = cosines[p.half];
      }
      if (p.conjugate) {
        PORTILE_UNROLL
        for (int j = 0; j < pairs; ++j) s[j] = -s[j];
      }
      PORTILE_UNROLL
      for (int h = 0; h < most; ++h) {
        if (h * step >= left) continue;
        float v[2 * pairs];
        unpack(x[h][0], v);
        unpack(x[h][1], v + pairs);
        if (p.interleaved) {
          PORTILE_UNROLL
          for (int j = 0; j < pairs; ++j) rotate(v[2 * j], v[2 * j + 1], c[j], s[j]);
        } else {
          PORTILE_UNROLL
          for (int j = 0; j < pairs; ++j) rotate(v[j], v[pairs + j], c[j], s[j]);
        }
        store(first + h * next, v);
        store(first + h * next + second, v + pairs);
      }
    }
  }

 private:
  static PORTILE_DEVICE void rotate(float& a, float& b, float c, float s) {
    const float rotated = ::fmaf(a, c, -(b * s));
    b = ::fmaf(a, s, b * c);
    a = rotated;
  }
  /// Values as they lie in memory: those of a vector, or one.
  using raw = std::conditional_t<vector, words4, T>;
  static PORTILE_DEVICE raw load(const T* p) {
    if constexpr (vector)
      return load16(p);
    else
      return *p;
  }
  static PORTILE_DEVICE void unpack(const raw& w, float* v) {
    if constexpr (!vector) {
      v[0] = load_value(&w, 0);
    } else {
      PORTILE_UNROLL
      for (int j = 0; j < pairs; ++j) {
        if constexpr (std::is_same_v<T, float>)
          v[j] = numeric::bits_float(w.w[j]);
        else if constexpr (std::is_same_v<T, numeric::bf16>)
          v[j] = j % 2 == 0 ? bf16_low(w.w[j / 2]) : bf16_high(w.w[j / 2]);
        else
          v[j] = numeric::to_float(numeric::f16{static_cast<std::uint16_t>(w.w[j / 2] >> (j % 2 * 16))});
      }
    }
  }
  static PORTILE_DEVICE void store(T* p, const float* v) {
    if constexpr (std::is_same_v<T, numeric::f16>) {
      if constexpr (vector) {
        words4 w;
        PORTILE_UNROLL
        for (int j = 0; j < 4; ++j)
          w.w[j] = std::uint32_t{numeric::to_f16(v[2 * j]).bits} |
                   std::uint32_t{numeric::to_f16(v[2 * j + 1]).bits} << 16;
        store16(p, w);
      } else {
        p[0] = numeric::to_f16(v[0]);
      }
    } else if constexpr (vector) {
      store_values<T, pairs>(p, 0, v);
    } else {
      store_value(p, 0, v[0]);
    }
  }
};

struct rope_simt {
  static void launch(const context& c, const rope::apply& p) {
    visit<float, numeric::bf16, numeric::f16>(p.query.dtype, [&](auto type) {
      using T = decltype(type);
      const std::int64_t half = p.cos_sin_cache.extent(1) / 2, unit = 16 / std::int64_t{sizeof(T)};
      const auto aligned = [&](tensor t) {
        if (t.defined()) t.data = static_cast<T*>(t.data) + p.rot_offset;
        return !t.defined() || rows_aligned(t, 16);
      };
      if (half % unit == 0 && aligned(p.query) && aligned(p.key) && rows_aligned(p.cos_sin_cache, 16))
        start<rope_pairs<T, true>>(c, p, half);
      else
        start<rope_pairs<T, false>>(c, p, half);
    });
  }

 private:
  template <class K>
  static void start(const context& c, const rope::apply& p, std::int64_t half) {
    typename K::params k{};
    const int first = p.query.rank - 3;  // dimension of the tokens; a batch may stand before it
    const auto set = [&](auto& heads, const tensor& t) {
      if (!t.defined()) return;
      heads.data = static_cast<decltype(heads.data)>(t.data) + p.rot_offset;
      heads.batch = first > 0 ? t.stride(0) : 0;
      heads.token = t.stride(first);
      heads.head = t.stride(first + 1);
      heads.count = t.extent(first + 1);
    };
    set(k.query, p.query);
    set(k.key, p.key);
    k.cache = static_cast<const float*>(p.cos_sin_cache.data);
    k.cache_stride = p.cos_sin_cache.stride(0);
    k.num_positions = p.cos_sin_cache.extent(0);
    if (p.positions.defined()) {
      if (p.positions.dtype == dtype::i32)
        k.positions32 = static_cast<const std::int32_t*>(p.positions.data);
      else
        k.positions64 = static_cast<const std::int64_t*>(p.positions.data);
      k.position_batch = first > 0 ? p.positions.stride(0) : 0;
      k.position_step = p.positions.stride(first);
    }
    k.half = half;
    k.seqlen_offset = p.seqlen_offset;
    k.trap = c.call.trap;
    k.interleaved = p.interleaved;
    k.conjugate = p.conjugate;
    const std::int64_t batches = first > 0 ? p.query.extent(0) : 1, tokens = p.query.extent(first);
    if (batches * tokens == 0) return;
    // A position is looked at even where there is nothing to rotate.
    const std::int64_t per_head = std::max<std::int64_t>(half / K::pairs, 1);
    k.query_groups = numeric::ceil_div(k.query.count, K::most);
    k.key_groups = numeric::ceil_div(k.key.count, K::most);
    const std::int64_t per_token = std::max<std::int64_t>((k.query_groups + k.key_groups) * per_head, 1);
    k.items = batches * tokens * per_token;
    k.per_token = divider(per_token, k.items + K::threads);
    k.per_head = divider(per_head, per_token);
    k.tokens = divider(tokens, batches * tokens);
    gpu::launch<K>(c, numeric::ceil_div(k.items, K::threads), 0, k);
  }
};

}  // namespace

extern const portile_implementation rope_apply_simt;
const portile_implementation rope_apply_simt = make_simt<rope::apply, rope_simt>();

}  // namespace portile::gpu
