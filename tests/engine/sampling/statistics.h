// Chi-square goodness of fit, for tests of distributions.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::testing {

// Q(a, x), the regularised upper incomplete gamma function, by its series or continued fraction.
inline double upper_gamma(double a, double x) {
  if (x <= 0) return 1;
  const double front = std::exp(-x + a * std::log(x) - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a;
    double series = term;
    for (double n = a + 1; term > series * 1e-15; ++n) series += term *= x / n;
    return 1 - series * front;
  }
  double b = x + 1 - a;
  double c = 1e300;
  double d = 1 / b;
  double fraction = d;
  for (int i = 1; i < 10000; ++i) {  // Lentz
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    fraction *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return fraction * front;
}

// Probability of counts at least this far from `probs` (which sum to 1), if these are true. Cells
// with an expectation under 5 are pooled; a count in a cell of probability 0 gives 0.
inline double chi_square_p(std::span<const int64_t> counts, std::span<const double> probs) {
  double draws = 0;
  for (const int64_t c : counts) draws += static_cast<double>(c);
  double statistic = 0;
  int cells = 0;
  double pooled = 0;
  double pooled_expected = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probs[i];
    const auto count = static_cast<double>(counts[i]);
    if (probs[i] <= 0 && counts[i] > 0) return 0;
    if (expected < 5) {
      pooled += count;
      pooled_expected += expected;
      continue;
    }
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  }
  if (pooled_expected > 0.5) {
    statistic += (pooled - pooled_expected) * (pooled - pooled_expected) / pooled_expected;
    ++cells;
  }
  return cells < 2 ? 1 : upper_gamma((cells - 1) / 2.0, statistic / 2);
}

}  // namespace tandem::testing
