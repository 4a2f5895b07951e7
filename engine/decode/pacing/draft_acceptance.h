#pragma once

#include <array>
#include <cstddef>

#include "engine/decode/ngram_index.h"
#include "engine/decode/pacing/acceptance_estimator.h"
#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// How likely a draft token is accepted, given that all before it were. Tokens are classed by the
// small model's confidence, by the matched length (n-grams; first tokens of a copy and further
// ones), or by the confidence of mask tokens (parallel draft tokens).
class DraftAcceptance {
 public:
  static constexpr double kPriorWeight = 2;   // observations that a prior counts for, at first
  static constexpr double kSharedWeight = 8;  // and that a shared estimate does

  // Classes of tokens.
  static int small(float confidence);
  static int lookup(int matched, bool continues_copy);  // matched: [1, kMaxNgram]
  static int parallel(float confidence) { return kParallel + small(confidence); }
  static bool is_small(int token) { return token < kConfidences; }
  static bool is_parallel(int token) { return token >= kParallel && token < kTokens; }
  // The small model's next token, before its pass: by the token before it, or by the previous
  // round.
  static int next(int context) { return kTokens + context; }
  static constexpr int kConfidences = 10, kParallel = kConfidences + 2 * kMaxNgram;
  static constexpr int kTokens = kParallel + kConfidences;
  static constexpr int kAfterAll = kTokens, kAfterSome = kTokens + 1;  // drafts were accepted
  // The parallel token behind it, before the pass.
  static constexpr int kNextParallel = kTokens + kAfterSome + 1;

  void observe(int event, bool accepted, double memory) { at(event).observe(accepted, memory); }
  double observations(int event) const { return at(event).observations(); }
  double rate(int event) const {
    return at(event).rate_with_fading_prior(prior(event), kPriorWeight);
  }
  double rate(int event, const DraftAcceptance& shared) const {
    return at(event).rate(shared.rate(event), kSharedWeight);
  }
  void limit(double most) {
    for (AcceptanceEstimator& e : events_) e.limit(most);
  }
  void visit(SavedNumbers* saved) {
    for (AcceptanceEstimator& e : events_) e.visit(saved);
  }

 private:
  static double prior(int event);
  AcceptanceEstimator& at(int event) { return events_[static_cast<size_t>(event)]; }
  const AcceptanceEstimator& at(int event) const { return events_[static_cast<size_t>(event)]; }

  std::array<AcceptanceEstimator, kNextParallel + 1> events_;
};

}  // namespace tandem
