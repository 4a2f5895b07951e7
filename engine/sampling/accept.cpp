#include "engine/sampling/accept.h"

#include <algorithm>
#include <utility>

#include "engine/sampling/lanes.h"
#include "engine/sampling/race.h"
#include "engine/sampling/warp.h"

namespace tandem::sampling {

bool accepts(std::span<const float> p, DraftDist q, Token draft, double u) {
  if (draft < 0 || static_cast<size_t>(draft) >= p.size()) return false;
  return u * q.of(draft) < p[static_cast<size_t>(draft)];  // strict: p = 0 is never accepted
}

double to_residual(std::span<float> p, DraftDist q, Token draft) {
  if (q.probs.empty()) {
    if (draft < 0 || static_cast<size_t>(draft) >= p.size()) return sum(p);
    const float of_draft = std::exchange(p[static_cast<size_t>(draft)], 0.0f);
    const double rest = sum(p);
    if (rest > 0) return rest;
    p[static_cast<size_t>(draft)] = of_draft;  // p was one-hot too
    return of_draft;
  }
  const size_t shared = std::min(p.size(), q.probs.size());
  const auto excess = [&](size_t i) {
    const float d = i < shared ? p[i] - q.probs[i] : p[i];
    return d > 0 ? d : 0.0f;
  };
  const double total = row_sum(p.size(), excess);
  if (total <= 0) return sum(p);
  return row_sum(p.size(), [&](size_t i) { return p[i] = excess(i); });
}

Verdict judge(std::span<float> p, DraftDist q, Token draft, double accept_u, RaceKey residual) {
  if (accepts(p, q, draft, accept_u)) return {true, draft};
  to_residual(p, q, draft);
  return {false, race(p, residual)};
}

}  // namespace tandem::sampling
