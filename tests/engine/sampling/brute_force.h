// What engine/sampling computes, written again in double and with full sorts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "engine/pass/pass.h"

namespace tandem::testing {

inline std::vector<double> softmax(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  std::vector<double> p;
  for (const double v : x) p.push_back(std::exp(v - max));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= total;
  return p;
}

// Probabilities after temperature, top_k, top_p, min_p; transcribed from Transformers' warpers.
inline std::vector<double> warped_probs(const Warp& warp, std::span<const float> logits) {
  std::vector<double> x(logits.begin(), logits.end());
  if (warp.greedy()) {
    std::vector<double> one_hot(x.size(), 0.0);
    one_hot[static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin())] = 1;
    return one_hot;
  }
  for (double& v : x) v /= warp.temperature;
  if (warp.top_k > 0) {
    std::vector<double> sorted = x;
    std::sort(sorted.rbegin(), sorted.rend());
    const double kth = sorted[std::min(x.size(), static_cast<size_t>(warp.top_k)) - 1];
    for (double& v : x) v = v < kth ? -INFINITY : v;
  }
  if (warp.top_p < 1) {
    const std::vector<double> p = softmax(x);
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return x[a] < x[b] || (x[a] == x[b] && a > b); });
    double cumulative = 0;
    for (const size_t i : order) {
      cumulative += p[i];
      if (cumulative <= 1 - warp.top_p && i != order.back()) x[i] = -INFINITY;
    }
  }
  std::vector<double> p = softmax(x);
  const double threshold = warp.min_p * *std::max_element(p.begin(), p.end());
  for (size_t i = 0; i < p.size(); ++i) x[i] = p[i] < threshold ? -INFINITY : x[i];
  return softmax(x);
}

// The n best by (logit descending, id ascending).
inline std::vector<Token> best_tokens(std::span<const float> logits, int n) {
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](Token a, Token b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  order.resize(std::min(order.size(), static_cast<size_t>(n)));
  return order;
}

}  // namespace tandem::testing
