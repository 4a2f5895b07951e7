#include "engine/decode/pacing/draft_acceptance.h"

#include <algorithm>

namespace tandem {
namespace {

// Upper bounds of the confidence classes, and priors.
constexpr std::array<float, DraftAcceptance::kConfidences - 1> kBounds = {
    0.15F, 0.3F, 0.45F, 0.6F, 0.75F, 0.85F, 0.92F, 0.97F, 0.99F};
constexpr std::array<double, DraftAcceptance::kParallel> kPriors = {
    0.08, 0.22, 0.37, 0.52, 0.67, 0.8, 0.88, 0.94, 0.98, 0.99,
    // Copies, by matched length: first tokens, then further ones. Optimistic, as a trial is cheap.
    0.5, 0.65, 0.75, 0.8, 0.7, 0.8, 0.85, 0.9};
constexpr double kNextPrior = 0.7, kNextParallelPrior = 0.5;
constexpr double kParallelShare = 0.8;  // of the model's own token with the same confidence

}  // namespace

int DraftAcceptance::small(float confidence) {
  return static_cast<int>(std::upper_bound(kBounds.begin(), kBounds.end(), confidence) -
                          kBounds.begin());
}

int DraftAcceptance::lookup(int matched, bool continues_copy) {
  return kConfidences + (continues_copy ? kMaxNgram : 0) + matched - 1;
}

double DraftAcceptance::prior(int event) {
  if (event == kNextParallel) return kNextParallelPrior;
  if (event >= kTokens) return kNextPrior;
  if (event >= kParallel) return kParallelShare * prior(event - kParallel);
  return kPriors[static_cast<size_t>(event)];
}

}  // namespace tandem
