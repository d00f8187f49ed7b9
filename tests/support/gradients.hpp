#pragma once
// Gradients against central differences of the same formula in double precision.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace portile::test {

using numbers = std::vector<double>;

/// grad[i] must be the derivative of loss(x) by x[i], within rtol of itself plus atol_of_max of the largest
/// derivative.
inline void expect_gradient(const std::string& what, numbers x, const numbers& grad,
                            const std::function<double(const numbers&)>& loss, double rtol,
                            double atol_of_max) {
  REQUIRE(x.size() == grad.size());
  numbers want;
  double largest = 0;
  for (double& v : x) {
    const double at = v, step = 1e-4 * std::max(1.0, std::fabs(at));
    v = at + step;
    const double above = loss(x);
    v = at - step;
    want.push_back((above - loss(x)) / (2 * step));
    v = at;
    largest = std::max(largest, std::fabs(want.back()));
  }
  CHECK(largest > 0);  // a test of zeros shows nothing
  for (std::size_t i = 0; i < x.size(); ++i) {
    INFO(what << "[" << i << "]");
    CHECK(grad[i] == Approx(want[i]).epsilon(rtol).margin(atol_of_max * largest));
  }
}

inline double inner(const numbers& a, const numbers& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace portile::test
