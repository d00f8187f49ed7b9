// Random problems of the quant family, the casts per token apart: any size, stride, offset and option.
#include "gpu/against_reference.hpp"

#include <cmath>
#include <cstring>

#include "support/random.hpp"

using namespace portile;
using namespace portile::test;

namespace {

template <class P>
std::string text_of(const P& p) {
  std::string s;
  for (const field_info& f : get_operation(P::name).fields)
    s += f.name + " = " + (f.kind == field_kind::tensor ? f.tensor_in(&p).text() : f.attribute_text(&p)) +
         "; ";
  return s;
}

/// Equal bytes, any NaN for a NaN of f32; `bounded`: a field of f32 within 1e-4.
template <class P>
comparison agreement(const P& p, const std::string& bounded = {}) {
  return [&p, bounded](const std::string& field, const bytes& expected, const bytes& got) {
    for (const field_info& f : get_operation(P::name).fields) {
      if (f.name != field || f.tensor_in(&p).dtype != dtype::f32) continue;
      for (std::size_t i = 0; i + 4 <= expected.size(); i += 4) {
        float e, g;
        std::memcpy(&e, &expected[i], 4);
        std::memcpy(&g, &got[i], 4);
        if (std::memcmp(&e, &g, 4) == 0 || (std::isnan(e) && std::isnan(g))) continue;
        if (field != bounded || !(std::abs(e - g) <= 1e-4f + 1e-4f * std::abs(e))) return false;
      }
      return true;
    }
    return expected == got;
  };
}

template <class P, class Make>
void expect_random(unsigned seeds, const std::string& bounded, Make make) {
  for (unsigned seed = 1; seed <= trials(seeds); ++seed) {
    memory m;
    randomness r(seed);
    P p = make(m, r);
    INFO(P::name << " seed " << seed << ": " << text_of(p));
    REQUIRE(check(p).text() == "");
    expect_as_reference(p, agreement(p, bounded));
    CHECK(m.guards_intact());
  }
}

tensor scales(memory& m, randomness& r, dtype type, std::int64_t rows, std::int64_t cols, bool along_rows) {
  const bool packed = type == dtype::ue8m0x4;
  const std::int64_t height = packed && along_rows ? numeric::ceil_div(rows, 4) : rows;
  const std::int64_t width = packed && !along_rows ? numeric::ceil_div(cols, 4) : cols;
  const std::int64_t ld = numeric::align_up(std::max<std::int64_t>(height, 1), 16);
  tensor t = r.one_in(2) ? m.make(type, {height, width}) : m.make(type, {height, width}, {1, ld});
  r.fill_scales(t);
  return t;
}

/// The output scales that the flags ask for.
template <class P>
tensor output_scales(memory& m, randomness& r, P& p, std::int64_t rows, std::int64_t cols,
                     bool col_major = true) {
  p.round_sf = r.one_in(2);
  p.use_packed_ue8m0 = p.round_sf && r.one_in(2);
  p.use_tma_aligned_col_major_sf = col_major && r.one_in(2);
  const dtype type = p.use_packed_ue8m0 ? dtype::ue8m0x4 : dtype::f32;
  const std::int64_t width = stored_extent(type, cols);
  if (p.use_tma_aligned_col_major_sf)
    return m.make(type, {rows, width}, {1, numeric::align_up(std::max<std::int64_t>(rows, 1), 4)});
  return m.make(type, {rows, width});
}

dtype plain(randomness& r) { return r.pick({dtype::bf16, dtype::f32}); }

}  // namespace

TEST_CASE("quant.cast: random problems give the reference's bits") {
  expect_random<quant::cast>(60, "", [](memory& m, randomness& r) {
    quant::cast p;
    const dtype in = r.pick({dtype::f32, dtype::bf16, dtype::e4m3});
    const dtype out = r.pick({dtype::f32, dtype::bf16, dtype::e4m3});
    p.stochastic_rounding =
        r.one_in(2) && ((in == dtype::f32 && out != dtype::f32) || (in == dtype::bf16 && out == dtype::e4m3));
    const std::int64_t n = p.stochastic_rounding ? 4 * r.number(0, 900) : r.number(0, 3000);
    const auto at_offset = [&](dtype type) {
      const tensor whole = m.make(type, {n + 4});
      return make_tensor(static_cast<char*>(whole.data) + r.number(0, 4) * size_of(type), type, {n});
    };
    p.x = at_offset(in);
    r.fill(p.x);
    p.out = at_offset(out);
    return p;
  });
}

TEST_CASE("quant.cast_back and quant.per_token_cast_back: random problems give the reference's bits") {
  expect_random<quant::cast_back>(120, "", [](memory& m, randomness& r) {
    quant::cast_back p;
    const dtype codes = r.pick({dtype::e4m3, dtype::e2m1x2, dtype::e5m6x8});
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 3, 17, 40});
    const std::int64_t cols = codes == dtype::e5m6x8 ? 8 * r.number(1, 70) : 64 * r.number(1, 9);
    p.x_block_rows = r.pick<std::int64_t>({1, 1, 4, 32, 128});
    p.x_block_cols = r.pick<std::int64_t>({1, 3, 8, 16, 24, 32, 128, cols});
    p.x = r.matrix(m, codes, rows, cols);
    r.fill(p.x);
    const dtype sf = r.pick({dtype::f32, dtype::e4m3, dtype::ue8m0x4});
    const std::int64_t height = numeric::ceil_div(rows, p.x_block_rows),
                       width = numeric::ceil_div(cols, p.x_block_cols);
    p.use_packed_ue8m0 = sf == dtype::ue8m0x4;
    const bool along_rows = p.x_block_cols == 1;
    const std::int64_t stored_rows = p.use_packed_ue8m0 && along_rows ? numeric::ceil_div(height, 4) : height;
    const std::int64_t stored_cols = p.use_packed_ue8m0 && !along_rows ? numeric::ceil_div(width, 4) : width;
    p.use_tma_aligned_col_major_sf = !along_rows && r.one_in(2);
    p.x_sf = p.use_tma_aligned_col_major_sf
                 ? m.make(sf, {stored_rows, stored_cols},
                          {1, numeric::align_up(std::max<std::int64_t>(stored_rows, 1), 16)})
                 : m.make(sf, {stored_rows, stored_cols});
    r.fill_scales(p.x_sf);
    p.out = r.matrix(m, plain(r), rows, cols);
    return p;
  });
  expect_random<quant::per_token_cast_back>(60, "", [](memory& m, randomness& r) {
    quant::per_token_cast_back p;
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 3, 17, 40}), cols = 64 * r.number(1, 9);
    p.num_per_channels = r.pick<std::int64_t>({16, 32, 128, 100, cols});
    p.x = r.matrix(m, r.pick({dtype::e4m3, dtype::e2m1x2}), rows, cols);
    r.fill(p.x);
    p.x_sf = scales(m, r, r.pick({dtype::f32, dtype::e4m3, dtype::ue8m0x4}), rows,
                    numeric::ceil_div(cols, p.num_per_channels), false);
    p.out = r.matrix(m, plain(r), rows, cols);
    return p;
  });
}

TEST_CASE("quant.per_token_cast_and_cast_back: random problems give the reference's bits") {
  expect_random<quant::per_token_cast_and_cast_back>(60, "", [](memory& m, randomness& r) {
    quant::per_token_cast_and_cast_back p;
    p.fmt = r.one_in(2) ? "e4m3" : "e2m1";
    p.num_per_channels = r.pick<std::int64_t>({16, 32, 64, 128});
    p.x = r.matrix(m, plain(r), r.pick<std::int64_t>({0, 1, 3, 40}), 128 * r.number(1, 5));
    r.fill(p.x);
    p.round_sf = r.one_in(2);
    p.use_e4m3_sf = !p.round_sf && r.one_in(2);
    return p;
  });
}

TEST_CASE("quant.per_block_cast: random problems give the reference's bits") {
  expect_random<quant::per_block_cast>(80, "", [](memory& m, randomness& r) {
    quant::per_block_cast p;
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 31, 33, 128, 200}), cols = 64 * r.number(1, 6);
    p.block_rows = r.pick<std::int64_t>({32, 128});
    p.block_cols = r.pick<std::int64_t>({32, 128});
    p.x = r.matrix(m, plain(r), rows, cols);
    r.fill(p.x);
    p.out = r.matrix(m, r.pick({dtype::e4m3, dtype::e2m1x2}), rows, cols);
    p.out_sf =
        output_scales(m, r, p, numeric::ceil_div(rows, p.block_rows), numeric::ceil_div(cols, p.block_cols));
    return p;
  });
}

TEST_CASE("quant.per_block_cast_lossless: random problems give the reference's bits") {
  expect_random<quant::per_block_cast_lossless>(50, "", [](memory& m, randomness& r) {
    quant::per_block_cast_lossless p;
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 31, 33, 130}), cols = 32 * r.number(1, 12);
    p.x_block_rows = r.pick<std::int64_t>({1, 1, 3, 32});
    p.x_block_cols = r.pick<std::int64_t>({1, 8, 16, 32, 32, 256});
    p.out_block_rows = p.x_block_rows * r.pick<std::int64_t>({1, 2, 4, 5});
    p.out_block_cols = p.x_block_cols * r.pick<std::int64_t>({1, 2, 4});
    p.x = r.matrix(m, dtype::e2m1x2, rows, cols);
    r.fill(p.x);
    p.x_sf = scales(m, r, r.pick({dtype::f32, dtype::ue8m0x4}), numeric::ceil_div(rows, p.x_block_rows),
                    numeric::ceil_div(cols, p.x_block_cols), p.x_block_cols == 1);
    p.out = r.matrix(m, dtype::e4m3, rows, cols);
    p.out_sf = output_scales(m, r, p, numeric::ceil_div(rows, p.out_block_rows),
                             numeric::ceil_div(cols, p.out_block_cols));
    if (p.use_packed_ue8m0 && (!p.use_tma_aligned_col_major_sf || p.out_block_cols == 1)) {
      p.use_packed_ue8m0 = p.use_tma_aligned_col_major_sf = false;
      p.out_sf = m.make(
          dtype::f32, {numeric::ceil_div(rows, p.out_block_rows), numeric::ceil_div(cols, p.out_block_cols)});
    }
    return p;
  });
}

TEST_CASE("quant.per_channel_cast and its relatives: random problems give the reference's bits") {
  expect_random<quant::per_channel_cast>(40, "", [](memory& m, randomness& r) {
    quant::per_channel_cast p;
    const std::int64_t rows = 128 * r.number(0, 3), cols = 64 * r.number(1, 5);
    p.x = r.matrix(m, r.pick({dtype::bf16, dtype::f32, dtype::e4m3}), rows, cols);
    r.fill(p.x);
    if (p.x.dtype == dtype::e4m3) {
      p.num_per_channels = r.pick<std::int64_t>({32, 128});
      p.x_sf = scales(m, r, r.pick({dtype::f32, dtype::ue8m0x4}), rows,
                      numeric::ceil_div(cols, *p.num_per_channels), false);
    }
    p.num_per_tokens = r.pick<std::int64_t>({32, 128});
    p.round_sf = r.one_in(2);
    p.use_packed_ue8m0 = p.round_sf && r.one_in(2);
    p.out = r.matrix(m, dtype::e4m3, rows, cols);
    const std::int64_t blocks = rows / p.num_per_tokens;
    p.out_sf = p.use_packed_ue8m0 ? m.make(dtype::ue8m0x4, {numeric::ceil_div(blocks, 4), cols})
                                  : m.make(dtype::f32, {blocks, cols});
    return p;
  });
  expect_random<quant::per_channel_cast_and_transpose>(30, "", [](memory& m, randomness& r) {
    quant::per_channel_cast_and_transpose p;
    const std::int64_t rows = 128 * r.number(0, 3), cols = 64 * r.number(1, 5);
    p.x = r.matrix(m, plain(r), rows, cols);
    r.fill(p.x);
    p.num_per_tokens = r.pick<std::int64_t>({32, 128});
    p.round_sf = r.one_in(2);
    p.out = r.matrix(m, dtype::e4m3, cols, rows);
    p.out_sf = m.make(dtype::f32, {rows / p.num_per_tokens, cols});
    return p;
  });
  expect_random<quant::per_channel_cast_fused>(40, "", [](memory& m, randomness& r) {
    quant::per_channel_cast_fused p;
    const bool gathers = r.one_in(2);
    const std::int64_t tokens = gathers ? r.number(1, 60) : 128 * r.number(0, 2), cols = 128 * r.number(1, 3);
    const std::int64_t rows = gathers ? 16 * r.number(0, 20) : tokens;
    p.x = r.matrix(m, r.pick({dtype::bf16, dtype::f32, dtype::e4m3}), tokens, cols);
    r.fill(p.x);
    if (p.x.dtype == dtype::e4m3) {
      p.num_per_channels = 128;
      p.x_sf =
          scales(m, r, r.pick({dtype::f32, dtype::ue8m0x4}), tokens, numeric::ceil_div(cols, 128), false);
    }
    if (gathers) {
      p.pos_to_token = m.make(dtype::i32, {rows});
      const std::int64_t bad = r.one_in(4) ? 2 : 0;
      for (std::int64_t i = 0; i < rows; ++i)
        static_cast<std::int32_t*>(p.pos_to_token.data)[i] =
            static_cast<std::int32_t>(r.number(-2, tokens - 1 + bad));
    }
    p.round_sf = r.one_in(2);
    p.out = r.matrix(m, dtype::e4m3, rows, cols);
    p.out_sf = m.make(dtype::f32, {numeric::ceil_div(rows, 128), cols});
    return p;
  });
}

namespace {

/// Ends of segments; now and then nonsense.
tensor segment_ends(memory& m, randomness& r, std::int64_t rows, std::int64_t alignment) {
  const std::int64_t experts = r.number(1, 300) / (r.one_in(2) ? 1 : 40) + 1;
  tensor t = m.make(dtype::i32, {experts});
  std::int64_t end = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t begin = numeric::align_up(end, alignment);
    end = std::min(begin + r.number(0, rows / 3 + 1), std::max(begin, rows));
    if (r.one_in(60)) end = r.number(-3, rows + 5);
    static_cast<std::int32_t*>(t.data)[e] = static_cast<std::int32_t>(end);
    end = std::max<std::int64_t>(end, 0);
  }
  return t;
}
tensor indices(memory& m, randomness& r, std::int64_t n, std::int64_t low, std::int64_t high) {
  tensor t = m.make(dtype::i32, {n});
  for (std::int64_t i = 0; i < n; ++i)
    static_cast<std::int32_t*>(t.data)[i] = static_cast<std::int32_t>(r.number(low, high));
  return t;
}
tensor counters(memory& m, std::int64_t n) {
  tensor t = m.make(dtype::i64, {n});
  for (std::int64_t i = 0; i < n; ++i) static_cast<std::int64_t*>(t.data)[i] = 1000 * i;
  return t;
}
template <class P>
void matrix_weights(memory& m, randomness& r, P& p, std::int64_t rows) {
  const std::int64_t tokens = r.number(1, 20), topk = r.number(1, 6);
  p.topk_weights = r.matrix(m, dtype::f32, tokens, topk);
  r.fill(p.topk_weights, true);
  p.pos_to_token_topk = indices(m, r, rows, -2, tokens * topk - 1 + (r.one_in(5) ? 1 : 0));
}

}  // namespace

TEST_CASE("quant.swiglu_forward and its casts: random problems give the reference's bits") {
  expect_random<quant::swiglu_forward>(60, "", [](memory& m, randomness& r) {
    quant::swiglu_forward p;
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 5, 40}), cols = 64 * r.number(1, 6);
    p.x = r.matrix(m, plain(r), rows, 2 * cols);
    r.fill(p.x);
    p.out = r.matrix(m, plain(r), rows, cols);
    p.token_alignment = r.pick<std::int64_t>({1, 3, 8});
    if (r.one_in(2) && rows > 0) p.psum_num_tokens_per_expert = segment_ends(m, r, rows, p.token_alignment);
    if (r.one_in(2)) {
      p.topk_weights = m.make(dtype::f32, {rows});
      r.fill(p.topk_weights, true);
      if (r.one_in(2)) p.routed_scaling_factor = 2.5;
    }
    if (r.one_in(2)) p.clamp_value = 0.5;
    if (p.clamp_value && r.one_in(2)) p.clamped_count = counters(m, 4);
    return p;
  });
  expect_random<quant::swiglu_forward_and_per_token_cast>(120, "", [](memory& m, randomness& r) {
    quant::swiglu_forward_and_per_token_cast p;
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 5, 40});
    const std::int64_t cols = r.one_in(8) ? 64 * r.number(60, 80) : 64 * r.number(1, 6);
    p.num_per_channels = r.pick<std::int64_t>({32, 128, cols});
    p.x = r.matrix(m, plain(r), rows, 2 * cols);
    r.fill(p.x);
    p.out = r.matrix(m, dtype::e4m3, rows, cols);
    p.token_alignment = r.pick<std::int64_t>({1, 3, 8});
    const int owner = static_cast<int>(r.number(0, 2));
    if (owner == 1 && rows > 0) p.psum_num_tokens_per_expert = segment_ends(m, r, rows, p.token_alignment);
    if (owner == 2) p.pos_to_expert = indices(m, r, rows, -1, 5);
    const int weights = static_cast<int>(r.number(0, 2));
    if (weights == 1) {
      p.topk_weights = m.make(dtype::f32, {rows});
      r.fill(p.topk_weights, true);
    }
    if (weights == 2) matrix_weights(m, r, p, rows);
    if (weights > 0 && r.one_in(2)) p.routed_scaling_factor = 2.5;
    if (r.one_in(2)) p.clamp_value = 0.5;
    if (p.clamp_value && r.one_in(2)) p.clamped_count = counters(m, r.pick<std::int64_t>({3, 4}));
    if (r.one_in(3)) p.sf_clamp_min = r.pick({0.0, 0.25});
    const bool whole_row = p.num_per_channels != 32 && p.num_per_channels != 128;
    p.out_sf = output_scales(m, r, p, rows, numeric::ceil_div(cols, p.num_per_channels), !whole_row);
    return p;
  });
  expect_random<quant::swiglu_forward_and_per_channel_cast_and_transpose>(
      30, "", [](memory& m, randomness& r) {
        quant::swiglu_forward_and_per_channel_cast_and_transpose p;
        const std::int64_t rows = 128 * r.number(0, 2), cols = 64 * r.number(1, 4);
        p.x = r.matrix(m, plain(r), rows, 2 * cols);
        r.fill(p.x);
        p.num_per_tokens = r.pick<std::int64_t>({32, 128});
        p.round_sf = r.one_in(2);
        p.without_transpose = r.one_in(2);
        if (r.one_in(2)) p.clamp_value = 0.5;
        p.out =
            p.without_transpose ? r.matrix(m, dtype::e4m3, rows, cols) : r.matrix(m, dtype::e4m3, cols, rows);
        p.out_sf = m.make(dtype::f32, {rows / p.num_per_tokens, cols});
        return p;
      });
}

TEST_CASE("quant.swiglu_backward and its cast: random problems give the reference's bits") {
  expect_random<quant::swiglu_backward>(60, "topk_weights_grad", [](memory& m, randomness& r) {
    quant::swiglu_backward p;
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 5, 40});
    const std::int64_t cols = r.one_in(8) ? 64 * r.number(30, 40) : 64 * r.number(1, 6);
    const dtype in = plain(r), out = plain(r);
    p.x = r.matrix(m, in, rows, 2 * cols);
    p.out_grad = r.matrix(m, in, rows, cols);
    p.x_grad = r.matrix(m, out, rows, 2 * cols);
    if (r.one_in(2)) p.act_out = r.matrix(m, out, rows, cols);
    p.token_alignment = r.pick<std::int64_t>({1, 3, 8});
    if (r.one_in(2) && rows > 0) p.psum_num_tokens_per_expert = segment_ends(m, r, rows, p.token_alignment);
    const bool weighted = r.one_in(2);
    r.fill(p.x, weighted);
    r.fill(p.out_grad, weighted);
    if (weighted) {
      p.topk_weights = m.make(dtype::f32, {rows});
      r.fill(p.topk_weights, true);
      if (r.one_in(2)) p.routed_scaling_factor = 2.5;
      // Sums of normal numbers, so that the order does not matter much.
      fill_normal(make_tensor(p.x.data, in, {p.x.span()}), 1);
      fill_normal(make_tensor(p.out_grad.data, in, {p.out_grad.span()}), 2);
      if (r.one_in(2)) p.topk_weights_grad = m.make(dtype::f32, {rows});
    }
    if (r.one_in(2)) p.clamp_value = 0.5;
    return p;
  });
  expect_random<quant::swiglu_backward_and_per_token_cast>(
      80, "topk_weights_grad", [](memory& m, randomness& r) {
        quant::swiglu_backward_and_per_token_cast p;
        const std::int64_t rows = r.pick<std::int64_t>({0, 1, 5, 40});
        p.num_per_channels = r.pick<std::int64_t>({32, 128});
        const std::int64_t cols = p.num_per_channels * (r.one_in(8) ? r.number(17, 20) : r.number(1, 5));
        p.x = r.matrix(m, dtype::e4m3, rows, 2 * cols);
        r.fill(p.x, true);
        const dtype sf = r.pick({dtype::f32, dtype::ue8m0x4});
        p.x_sf = scales(m, r, sf, rows, 2 * cols / p.num_per_channels, false);
        if (sf == dtype::f32)
          for (std::int64_t i = 0; i < p.x_sf.span(); ++i) static_cast<float*>(p.x_sf.data)[i] = 0x1p-7f;
        p.out_grad = r.matrix(m, plain(r), rows, cols);
        fill_normal(make_tensor(p.out_grad.data, p.out_grad.dtype, {p.out_grad.span()}), 2);
        p.x_grad = r.matrix(m, dtype::bf16, rows, 2 * cols);
        p.x_grad_fp8 = r.matrix(m, dtype::e4m3, rows, 2 * cols);
        if (r.one_in(2)) p.act_out = r.matrix(m, dtype::bf16, rows, cols);
        p.token_alignment = r.pick<std::int64_t>({1, 3, 8});
        if (r.one_in(2) && rows > 0)
          p.psum_num_tokens_per_expert = segment_ends(m, r, rows, p.token_alignment);
        const int weights = static_cast<int>(r.number(0, 2));
        if (weights == 1) {
          p.topk_weights = m.make(dtype::f32, {rows});
          r.fill(p.topk_weights, true);
          if (sf == dtype::f32) p.topk_weights_grad = m.make(dtype::f32, {rows});
        }
        if (weights == 2) {
          matrix_weights(m, r, p, rows);
          const std::int64_t tokens = p.topk_weights.extent(0), topk = p.topk_weights.extent(1);
          if (sf == dtype::f32) {
            const tensor flat = indices(m, r, tokens * topk, -1, rows - 1 + (r.one_in(5) ? 1 : 0));
            p.token_topk_to_pos = make_tensor(flat.data, dtype::i32, {tokens, topk});
            p.topk_weights_grad = r.matrix(m, dtype::f32, tokens, topk);
          }
        }
        if (weights > 0 && r.one_in(2)) p.routed_scaling_factor = 2.5;
        if (r.one_in(2)) p.clamp_value = 0.5;
        p.x_grad_fp8_sf = output_scales(m, r, p, rows, 2 * cols / p.num_per_channels);
        return p;
      });
}

namespace {

/// 64 rows whose left halves hold every bf16 once, neighbours side by side; the right halves are normal.
tensor all_left_halves(memory& m) {
  tensor x = m.make(dtype::bf16, {64, 2048});
  fill_normal(x, 5);
  auto* bits = static_cast<std::uint16_t*>(x.data);
  for (std::int64_t i = 0; i < 65536; ++i) bits[i / 1024 * 2048 + i % 1024] = static_cast<std::uint16_t>(i);
  return x;
}

}  // namespace

TEST_CASE("quant.swiglu_*: every bf16 as left half, and normal values that lie between two codes") {
  for (const bool every : {true, false})
    for (const bool clamped : {false, true}) {
      INFO((every ? "every bf16" : "normal") << (clamped ? ", clamped" : ""));
      memory m;
      tensor x = every ? all_left_halves(m) : m.make(dtype::bf16, {64, 2048});
      if (!every) fill_normal(x, 7);
      const std::optional<double> clamp = clamped ? std::optional<double>(2.5) : std::nullopt;
      const tensor counts = clamped ? counters(m, 3) : tensor{};
      {
        const quant::swiglu_forward p{.x = x, .out = m.make(dtype::bf16, {64, 1024}), .clamp_value = clamp};
        expect_as_reference(p, agreement(p));
      }
      for (const bool round : {true, false}) {
        const quant::swiglu_forward_and_per_token_cast p{.x = x,
                                                         .out = m.make(dtype::e4m3, {64, 1024}),
                                                         .out_sf = m.make(dtype::f32, {64, 8}),
                                                         .clamped_count = counts,
                                                         .clamp_value = clamp,
                                                         .round_sf = round};
        expect_as_reference(p, agreement(p));
      }
      {
        tensor grad = m.make(dtype::bf16, {64, 1024});
        fill_normal(grad, 9);
        const quant::swiglu_backward p{.x = x,
                                       .out_grad = grad,
                                       .x_grad = m.make(dtype::bf16, {64, 2048}),
                                       .act_out = m.make(dtype::bf16, {64, 1024}),
                                       .clamp_value = clamp};
        expect_as_reference(p, agreement(p));
      }
    }
}
