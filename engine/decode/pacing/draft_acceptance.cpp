#include "engine/decode/pacing/draft_acceptance.h"

#include <algorithm>
#include <bit>

namespace tandem {
namespace {

// Upper bounds of the confidence classes, and priors.
constexpr std::array<float, DraftAcceptance::kConfidences - 1> kBounds = {
    0.15F, 0.3F, 0.45F, 0.6F, 0.75F, 0.85F, 0.92F, 0.97F, 0.99F};
constexpr std::array<double, DraftAcceptance::kParallel> kPriors = {
    0.08, 0.22, 0.37, 0.52, 0.67, 0.8, 0.88, 0.94, 0.98, 0.99,
    // First tokens of copies, by the match, then further ones. Those of long matches are low,
    // because a rejected copy costs many rows and is one observation, and an accepted one is many.
    0.3, 0.45, 0.5, 0.6, 0.6, 0.65, 0.7, 0.5, 0.6, 0.65, 0.7,  //
    0.5, 0.7, 0.8, 0.8, 0.85, 0.85, 0.88, 0.6, 0.8, 0.85, 0.85};
constexpr double kNextPrior = 0.7, kNextParallelPrior = 0.5;
constexpr double kParallelShare = 0.8;  // of the model's own token with the same confidence

}  // namespace

int DraftAcceptance::small(float confidence) {
  return static_cast<int>(std::upper_bound(kBounds.begin(), kBounds.end(), confidence) -
                          kBounds.begin());
}

int DraftAcceptance::lookup(Matched by, bool continues_copy) {
  const auto n = static_cast<unsigned>(by.tokens);
  int match = n < 4 ? by.tokens - 1 : std::min(static_cast<int>(std::bit_width(n)), 6);
  if (by.in_history) match = kOwnMatches + std::max(match, 3) - 3;
  return kConfidences + (continues_copy ? kMatches : 0) + match;
}

std::vector<double> DraftAcceptance::upgraded(std::span<const double> numbers, size_t others) {
  constexpr int kOldMatches = 4, kOldParallel = kConfidences + 2 * kOldMatches;
  constexpr int kOldTokens = kOldParallel + kConfidences;
  constexpr int kOldEvents = kOldTokens + kOldTokens + 3;
  constexpr size_t kNumbers = 3;  // of an event
  if (numbers.size() != kOldEvents * kNumbers + others) return {numbers.begin(), numbers.end()};
  const auto token = [](int old) {
    if (old < kConfidences) return old;
    if (old < kOldParallel) {
      const int match = old - kConfidences;
      return lookup(match % kOldMatches + 1, match >= kOldMatches);
    }
    return old - kOldParallel + kParallel;  // and the events behind tokens
  };
  std::vector<double> all((kNextParallel + 1) * kNumbers);
  for (int old = 0; old < kOldEvents; ++old) {
    const int event = old < kOldTokens ? token(old) : next(token(old - kOldTokens));
    const auto from = numbers.begin() + static_cast<ptrdiff_t>(old * kNumbers);
    std::copy_n(from, kNumbers, all.begin() + static_cast<ptrdiff_t>(event * kNumbers));
  }
  all.insert(all.end(), numbers.end() - static_cast<ptrdiff_t>(others), numbers.end());
  return all;
}

double DraftAcceptance::prior(int event) {
  if (event == kNextParallel) return kNextParallelPrior;
  if (event >= kTokens) return kNextPrior;
  if (event >= kParallel) return kParallelShare * prior(event - kParallel);
  return kPriors[static_cast<size_t>(event)];
}

}  // namespace tandem
