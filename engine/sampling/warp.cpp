#include "engine/sampling/warp.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <optional>

#include "engine/sampling/lanes.h"

namespace tandem::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Below it the inverse overflows, and 0 * inverse would be NaN.
constexpr float kLeastTemperature = 1e-30f;
constexpr size_t kSmallBlock = 32;  // floats

// The order of tokens, everywhere: by logit, ties by lower id.
bool best_first(const Scratch::Candidate& a, const Scratch::Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Fills scratch.candidate with every token that can be among the n largest logits, ties included.
// Weights are not set. The n-th largest block maximum is a lower bound of the n-th largest logit,
// and few tokens lie above it.
void gather_best(std::span<const float> logits, size_t n, Scratch& scratch) {
  const size_t size = logits.size();
  std::vector<float>& block_max = scratch.block_max;
  block_max.resize((size + kSmallBlock - 1) / kSmallBlock);
  for (size_t b = 0; b < block_max.size(); ++b) {
    const size_t begin = b * kSmallBlock;
    float best[kLanes];
    std::fill(best, best + kLanes, -kInfinity);
    if (begin + kSmallBlock <= size) {
      for (size_t i = 0; i < kSmallBlock; i += kLanes) {
        for (size_t j = 0; j < kLanes; ++j) {
          const float x = logits[begin + i + j];
          best[j] = x > best[j] ? x : best[j];
        }
      }
    } else {
      for (size_t i = begin; i < size; ++i) best[0] = std::max(best[0], logits[i]);
    }
    for (size_t width = kLanes / 2; width > 0; width /= 2) {
      for (size_t j = 0; j < width; ++j) {
        best[j] = best[j + width] > best[j] ? best[j + width] : best[j];
      }
    }
    block_max[b] = best[0];
  }

  float bound = -kInfinity;
  if (n <= block_max.size()) {
    scratch.sorted = block_max;
    const auto nth = scratch.sorted.begin() + static_cast<std::ptrdiff_t>(n - 1);
    std::nth_element(scratch.sorted.begin(), nth, scratch.sorted.end(), std::greater<>());
    bound = *nth;
  }
  scratch.candidate.clear();
  for (size_t b = 0; b < block_max.size(); ++b) {
    if (block_max[b] < bound) continue;
    const size_t end = std::min((b + 1) * kSmallBlock, size);
    for (size_t i = b * kSmallBlock; i < end; ++i) {
      if (logits[i] >= bound) scratch.candidate.push_back({logits[i], static_cast<Token>(i), 0});
    }
  }
}

// The k-th largest logit, for 1 <= k <= vocab.
float kth_largest(std::span<const float> logits, size_t k, Scratch& scratch) {
  gather_best(logits, k, scratch);
  const auto nth = scratch.candidate.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(scratch.candidate.begin(), nth, scratch.candidate.end(), best_first);
  return nth->logit;
}

// The first candidate in `order` at which the running sum of weights reaches `target`, else the
// last. The sum starts at `before`. REQUIRES: there is a candidate.
template <class Order>
Scratch::Candidate crossing(std::vector<Scratch::Candidate>& c, double before, double target,
                            Order order) {
  auto begin = c.begin();
  auto end = c.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, order);
    double left = before;
    for (auto i = begin; i < middle; ++i) left += i->weight;
    if (left < target) {
      before = left;
      begin = middle;
    } else {
      end = middle;
    }
  }
  return *begin;
}

// Number of bisection steps over the whole row (vectorized) before the remaining interval is sorted
// (slow).
int halvings(size_t vocab) { return vocab < 1024 ? 0 : vocab < 16384 ? 4 : 8; }

// Buckets of equal width for logits near the maximum, in their order. Tokens below the first bucket
// have no nucleus_weight(): it is 0 below exp(-24.3).
class Buckets {
 public:
  static constexpr int kCount = 1024;

  Buckets(float max, float inverse_temperature)
      : low_(std::max(std::numeric_limits<float>::lowest(), max - 25 / inverse_temperature)),
        scale_(kCount / (max - low_)) {}

  int of(float logit) const {
    const float at = std::max(0.0f, (logit - low_) * scale_);  // 0 if that is NaN
    return static_cast<int>(std::min(at, kCount - 1.0f));
  }

 private:
  const float low_, scale_;
};

// The last token that top_p keeps: the last one, best first, whose predecessors weigh less than
// p * total. All sums are exact (nucleus_weight()), so buckets find the token that sorting would.
Scratch::Candidate nucleus_end(const Cuts& cuts, std::span<const float> logits, float max,
                               Scratch& scratch) {
  const size_t size = logits.size();
  const float* const weight = scratch.weight.data();
  const Buckets buckets(max, cuts.inverse_temperature);

  // By turns, so that an addition seldom waits for the one before.
  double sums[2][Buckets::kCount] = {};
  for (size_t begin = 0; begin < size; begin += kSmallBlock) {
    const size_t n = std::min(kSmallBlock, size - begin);
    int bucket[kSmallBlock];
    float of_token[kSmallBlock];
    for (size_t j = 0; j < n; ++j) {
      const float w = nucleus_weight(weight[begin + j]);
      of_token[j] = w;
      // Most tokens of a row may have no weight, and must not all wait for one bucket.
      bucket[j] = w > 0 ? buckets.of(logits[begin + j]) : static_cast<int>(j);
    }
    for (size_t j = 0; j < n; ++j) sums[j % 2][bucket[j]] += of_token[j];
  }
  double total = 0;
  for (int b = 0; b < Buckets::kCount; ++b) total += sums[0][b] + sums[1][b];
  const double target = double{cuts.top_p} * total;
  int last = buckets.of(max);
  double before = 0;  // the weight of better buckets
  for (; last > 0; --last) {
    const double sum = before + sums[0][last] + sums[1][last];
    if (sum >= target) break;
    before = sum;
  }

  std::vector<Scratch::Candidate>& c = scratch.candidate;
  c.clear();
  for (size_t begin = 0; begin < size; begin += kSmallBlock) {
    const size_t end = std::min(begin + kSmallBlock, size);
    int any = 0;
    for (size_t i = begin; i < end; ++i) any |= buckets.of(logits[i]) == last ? 1 : 0;
    if (any == 0) continue;
    for (size_t i = begin; i < end; ++i) {
      const float w = nucleus_weight(weight[i]);
      if (w > 0 && buckets.of(logits[i]) == last) {
        c.push_back({logits[i], static_cast<Token>(i), w});
      }
    }
  }
  return crossing(c, before, target, best_first);
}

// Sets the weights of cut tokens to 0. Returns the sum of the others.
double cut_weights(std::span<const float> logits, const Warped& kept, float* weight) {
  const float cut = kept.cut;
  const Token cut_id = kept.cut_id;
  const float ceiling = kept.ceiling;
  return row_sum(logits.size(), [=](size_t i) {
    const int tie = (logits[i] == cut) & (static_cast<Token>(i) <= cut_id);
    const int survives = ((logits[i] > cut) | tie) & (logits[i] <= ceiling);
    const float w = weight[i];
    return weight[i] = survives != 0 ? w : 0.0f;
  });
}

// Narrows the survivors to those that typical_p keeps. With s = (logit - max) / temperature, a
// token's log-probability is s - log(total). So its distance from the mean log-probability is that
// of s from the mean of s.
void keep_typical(const Warp& warp, std::span<const float> logits, Warped& kept, Scratch& scratch) {
  const size_t size = logits.size();
  const float* weight = scratch.weight.data();
  const float max = kept.max;
  const double inverse = kept.inverse_temperature;
  // Weights below exp(-87) are 0, and 0 * -Inf would be NaN.
  const double mean = row_sum(size,
                              [=](size_t i) {
                                const double s = static_cast<double>(logits[i] - max) * inverse;
                                return weight[i] * (s < -100 ? -100 : s);
                              }) /
                      kept.total;
  const auto distance = [=](float logit) {
    return std::abs(static_cast<double>(logit - max) * inverse - mean);
  };

  // Tokens survive up to a distance in (low, high]; `before` is the weight up to low.
  const double target = double{warp.typical_p} * kept.total;
  double low = -1;
  double high = 100;
  double before = 0;
  for (int i = halvings(size); i > 0; --i) {
    const double middle = (std::max(low, 0.0) + high) / 2;
    const double up_to = row_sum(size, [=](size_t j) {
      const float w = weight[j];
      return distance(logits[j]) <= middle ? w : 0.0f;
    });
    if (up_to >= target) {
      high = middle;
    } else {
      low = middle;
      before = up_to;
    }
  }
  std::vector<Scratch::Candidate>& c = scratch.candidate;
  c.clear();
  for (size_t i = 0; i < size; ++i) {
    if (weight[i] <= 0) continue;
    const double d = distance(logits[i]);
    if (d > low && d <= high) c.push_back({logits[i], static_cast<Token>(i), weight[i]});
  }
  const auto nearest = [&](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return distance(a.logit) < distance(b.logit);
  };
  const double reach = distance(crossing(c, before, target, nearest).logit);

  float least = kInfinity;
  float most = -kInfinity;
  for (size_t i = 0; i < size; ++i) {
    if (weight[i] <= 0 || distance(logits[i]) > reach) continue;
    least = std::min(least, logits[i]);
    most = std::max(most, logits[i]);
  }
  if (least > kept.cut) {
    kept.cut = least;
    kept.cut_id = Warped::kAllOfTie;
  }
  kept.ceiling = most;
  kept.total = cut_weights(logits, kept, scratch.weight.data());
}

}  // namespace

Warp warp_of(const SamplingParams& params) {
  Warp warp;
  const auto set = []<class T>(const std::optional<double>& from, T* to) {
    if (from) *to = static_cast<T>(*from);
  };
  set(params.temperature, &warp.temperature);
  set(params.top_k, &warp.top_k);
  set(params.top_p, &warp.top_p);
  set(params.min_p, &warp.min_p);
  set(params.typical_p, &warp.typical_p);
  return warp;
}

Scan scan(std::span<const float> logits) {
  const size_t size = logits.size();
  Scan result;
  float best = -kInfinity;
  size_t best_block = 0;
  uint32_t wrong = 0;
  for (size_t begin = 0; begin < size; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, size);
    float lane[kLanes];
    uint32_t bad[kLanes] = {};
    std::fill(lane, lane + kLanes, -kInfinity);
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        const float x = logits[i + j];
        lane[j] = x > lane[j] ? x : lane[j];
        bad[j] |= x < kInfinity ? 0u : 1u;  // NaN too
      }
    }
    for (; i < end; ++i) {
      const float x = logits[i];
      lane[0] = x > lane[0] ? x : lane[0];
      bad[0] |= x < kInfinity ? 0u : 1u;
    }
    float block_best = -kInfinity;
    for (size_t j = 0; j < kLanes; ++j) {
      block_best = std::max(block_best, lane[j]);
      wrong |= bad[j];
    }
    if (block_best > best) {
      best = block_best;
      best_block = begin;
    }
  }
  result.max = best;
  result.valid = wrong == 0 && best > -kInfinity;
  if (!result.valid) return result;
  const auto at =
      std::find(logits.begin() + static_cast<std::ptrdiff_t>(best_block), logits.end(), best);
  result.argmax = static_cast<Token>(at - logits.begin());
  return result;
}

float Warped::logprob(Token id, float logit) const {
  if (!survives(id, logit)) return -kInfinity;
  return static_cast<float>(static_cast<double>(logit - max) * inverse_temperature -
                            std::log(total));
}

float inverse_temperature(const Warp& warp) {
  return 1.0f / std::max(warp.temperature, kLeastTemperature);
}

Cuts cuts_of(const Warp& warp) {
  Cuts cuts;
  cuts.inverse_temperature = inverse_temperature(warp);
  cuts.top_k = warp.top_k;
  cuts.top_p = warp.top_p;
  if (warp.min_p > 0) {
    cuts.min_reach = std::max(warp.temperature, kLeastTemperature) * std::log(double{warp.min_p});
  }
  return cuts;
}

Warped warp(const Warp& warp, std::span<const float> logits, const Scan& scan, Scratch& scratch) {
  Warped result = sampling::warp(cuts_of(warp), logits, scan, scratch);
  if (warp.typical_p < 1) keep_typical(warp, logits, result, scratch);
  return result;
}

Warped warp(const Cuts& cuts, std::span<const float> logits, const Scan& scan, Scratch& scratch) {
  const size_t size = logits.size();
  scratch.weight.resize(size);
  float* weight = scratch.weight.data();

  Warped result;
  result.max = scan.max;
  result.inverse_temperature = cuts.inverse_temperature;

  if (cuts.top_k > 0 && static_cast<size_t>(cuts.top_k) < size) {
    // On undivided logits: division by the temperature could only add ties.
    result.cut = kth_largest(logits, static_cast<size_t>(cuts.top_k), scratch);
  }

  const float max = result.max;
  const float inverse = result.inverse_temperature;
  const float top_k_cut = result.cut;
  result.total = row_sum(size, [=](size_t i) {
    const float w = exp_nonpositive((logits[i] - max) * inverse);
    return weight[i] = logits[i] >= top_k_cut ? w : 0.0f;
  });

  if (cuts.top_p < 1) {
    const Scratch::Candidate last = nucleus_end(cuts, logits, max, scratch);
    result.cut = last.logit;
    result.cut_id = last.id;
  }
  if (cuts.min_reach <= 0) {
    const double cut = max + cuts.min_reach;
    if (cut > result.cut) {
      result.cut = static_cast<float>(cut);
      if (result.cut < cut) result.cut = std::nextafter(result.cut, kInfinity);
      result.cut_id = Warped::kAllOfTie;
    }
  }
  if (result.cut > top_k_cut || result.cut_id != Warped::kAllOfTie) {
    result.total = cut_weights(logits, result, weight);
  }
  return result;
}

void warp_to_probs(const Warp& warp, std::span<const float> logits, std::span<float> probs,
                   Scratch& scratch) {
  const Scan row = scan(logits);
  if (warp.greedy()) {
    std::fill(probs.begin(), probs.end(), 0.0f);
    probs[static_cast<size_t>(row.argmax)] = 1;
    return;
  }
  const Warped warped = sampling::warp(warp, logits, row, scratch);
  normalize(scratch.weight, warped.total, probs);
}

void normalize(std::span<const float> weights, double total, std::span<float> probs) {
  const auto scale = static_cast<float>(1 / total);
  for (size_t i = 0; i < weights.size(); ++i) probs[i] = weights[i] * scale;
}

double log_normalizer(std::span<const float> logits, float max) {
  return std::log(
      row_sum(logits.size(), [=](size_t i) { return exp_nonpositive(logits[i] - max); }));
}

void top_n(std::span<const float> logits, int n, Scratch& scratch, std::vector<Token>& out) {
  const size_t count = std::min(static_cast<size_t>(std::max(n, 0)), logits.size());
  out.clear();
  if (count == 0) return;
  gather_best(logits, count, scratch);
  std::vector<Scratch::Candidate>& c = scratch.candidate;
  std::partial_sort(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(count), c.end(), best_first);
  for (size_t i = 0; i < count; ++i) out.push_back(c[i].id);
}

double sum(std::span<const float> weights) {
  return row_sum(weights.size(), [=](size_t i) { return weights[i]; });
}

}  // namespace tandem::sampling
