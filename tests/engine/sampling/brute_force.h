// Reference of engine/sampling, in double precision with full sorts and counts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>
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

// The logits after the processors, in the order of processors.h. path: the tokens of all rows up to
// the one that is read; < 0: none.
inline std::vector<double> processed(const Processors& p, const std::vector<Token>& path,
                                     std::span<const float> logits) {
  std::vector<double> x(logits.begin(), logits.end());
  for (const auto& [token, bias] : p.bias) x[static_cast<size_t>(token)] += bias;
  for (size_t v = 0; v < x.size(); ++v) {
    const auto t = static_cast<Token>(v);
    const auto output = path.begin() + std::min<std::ptrdiff_t>(p.prompt_tokens, std::ssize(path));
    const auto all = std::count(path.begin(), path.end(), t);
    const auto times = std::count(output, path.end(), t);
    if (all > 0) x[v] *= x[v] < 0 ? p.repetition_penalty : 1 / double{p.repetition_penalty};
    x[v] -= static_cast<double>(times) * p.frequency_penalty;
    x[v] -= times > 0 ? p.presence_penalty : 0;
  }
  const int new_tokens = static_cast<int>(path.size()) - p.prompt_tokens;
  if (new_tokens < p.min_new_tokens) {
    for (const Token t : p.ends) x[static_cast<size_t>(t)] = -INFINITY;
  }
  return x;
}

// Probabilities after temperature, top_k, top_p, min_p, typical_p; transcribed from Transformers'
// warpers.
inline std::vector<double> warped_probs(const Warp& warp, std::vector<double> x) {
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
  p = softmax(x);
  if (warp.typical_p < 1) {
    double entropy = 0;
    for (const double v : p) entropy -= v > 0 ? v * std::log(v) : 0;
    std::vector<std::pair<double, double>> order;  // distance, probability
    const auto distance = [&](size_t i) { return std::abs(-std::log(p[i]) - entropy); };
    for (size_t i = 0; i < p.size(); ++i) order.emplace_back(distance(i), p[i]);
    std::sort(order.begin(), order.end());
    size_t last = 0;
    for (double up_to = order[0].second; up_to < warp.typical_p && last + 1 < order.size();) {
      up_to += order[++last].second;
    }
    for (size_t i = 0; i < x.size(); ++i) {
      // Equal logits have equal distances, despite rounding.
      if (distance(i) > order[last].first + 1e-12) x[i] = -INFINITY;
    }
    p = softmax(x);
  }
  return p;
}

inline std::vector<double> warped_probs(const Warp& warp, std::span<const float> logits) {
  return warped_probs(warp, std::vector<double>(logits.begin(), logits.end()));
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
