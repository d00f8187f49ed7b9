#pragma once
// The mhc formulas in double precision, for gradients by differences. No rounding to bf16 or tf32.
#include <cmath>
#include <cstdint>

#include "support/gradients.hpp"

namespace portile::test::model {

using index = std::size_t;

inline double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

/// Logits [T, mixes] of residual [T, K] and fn [mixes, K].
inline numbers norm_fn(const numbers& residual, const numbers& fn, index channels, double eps) {
  const index tokens = residual.size() / channels, mixes = fn.size() / channels;
  numbers out(tokens * mixes);
  for (index t = 0; t < tokens; ++t) {
    double squares = 0;
    for (index k = 0; k < channels; ++k) squares += residual[t * channels + k] * residual[t * channels + k];
    for (index j = 0; j < mixes; ++j) {
      double sum = 0;
      for (index k = 0; k < channels; ++k) sum += residual[t * channels + k] * fn[j * channels + k];
      out[t * mixes + j] = sum / std::sqrt(squares / static_cast<double>(channels) + eps);
    }
  }
  return out;
}

inline numbers merged(numbers fn, const numbers& weight) {
  for (index i = 0; i < fn.size(); ++i) fn[i] *= weight[i % weight.size()];
  return fn;
}

struct mixes {
  numbers pre, post, comb;
};
inline mixes split(const numbers& x, const numbers& scale, const numbers& base, index m,
                   double post_mult_value, double pre_eps) {
  mixes r;
  const index row = m * (m + 2);
  for (index k = 0; k < x.size(); ++k) {
    const index j = k % row;
    const double z = x[k] * scale[j < m ? 0 : j < 2 * m ? 1 : 2] + base[j];
    if (j < m)
      r.pre.push_back(sigmoid(z) + pre_eps);
    else if (j < 2 * m)
      r.post.push_back(sigmoid(z) * post_mult_value);
    else
      r.comb.push_back(z);
  }
  return r;
}

inline numbers sinkhorn(numbers a, index m, int repeat, double eps) {
  for (index t = 0; t < a.size() / (m * m); ++t) {
    double* x = a.data() + t * m * m;
    const auto normalise = [&](bool columns) {
      for (index n = 0; n < m; ++n) {
        double sum = eps;
        for (index k = 0; k < m; ++k) sum += columns ? x[k * m + n] : x[n * m + k];
        for (index k = 0; k < m; ++k) (columns ? x[k * m + n] : x[n * m + k]) /= sum;
      }
    };
    for (index i = 0; i < m; ++i) {
      double sum = 0;
      for (index o = 0; o < m; ++o) sum += x[i * m + o] = std::exp(x[i * m + o]);
      for (index o = 0; o < m; ++o) x[i * m + o] = x[i * m + o] / sum + eps;
    }
    normalise(true);
    for (int r = 1; r < repeat; ++r) {
      normalise(false);
      normalise(true);
    }
  }
  return a;
}

/// [T, H] from streams [T, m, H] and mix [T, m].
inline numbers apply(const numbers& x, const numbers& mix, index m) {
  const index tokens = mix.size() / m, hidden = x.size() / mix.size();
  numbers out(tokens * hidden);
  for (index t = 0; t < tokens; ++t)
    for (index i = 0; i < m; ++i)
      for (index h = 0; h < hidden; ++h) out[t * hidden + h] += mix[t * m + i] * x[(t * m + i) * hidden + h];
  return out;
}

/// [T, m, H] from x [T, H], residual [T, m, H], post [T, m], comb [T, m, m].
inline numbers post(const numbers& x, const numbers& residual, const numbers& post_mix, const numbers& comb,
                    index m) {
  const index tokens = post_mix.size() / m, hidden = x.size() / tokens;
  numbers out(residual.size());
  for (index t = 0; t < tokens; ++t)
    for (index o = 0; o < m; ++o)
      for (index h = 0; h < hidden; ++h) {
        double sum = post_mix[t * m + o] * x[t * hidden + h];
        for (index i = 0; i < m; ++i) sum += comb[(t * m + i) * m + o] * residual[(t * m + i) * hidden + h];
        out[(t * m + o) * hidden + h] = sum;
      }
  return out;
}

}  // namespace portile::test::model
