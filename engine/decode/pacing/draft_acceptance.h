#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "engine/decode/pacing/acceptance_estimator.h"
#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// What a look-up found: the length of the suffix, and where.
struct Matched {
  // NOLINTNEXTLINE(google-explicit-constructor): most are in the request's own text
  constexpr Matched(int n = 0, bool history = false) : tokens(n), in_history(history) {}

  int tokens = 0;  // 0: none
  bool in_history = false;
};

// How likely a draft token is accepted, given that all before it were. Tokens are classed by the
// small model's confidence, by the match (look-ups; first tokens of a copy and further ones), or by
// the confidence of mask tokens (parallel draft tokens).
class DraftAcceptance {
 public:
  static constexpr double kPriorWeight = 2;   // observations that a prior counts for, at first
  static constexpr double kSharedWeight = 8;  // and that a shared estimate does

  // Classes of tokens.
  static int small(float confidence);
  static int lookup(Matched by, bool continues_copy);  // REQUIRES: by.tokens > 0
  static int parallel(float confidence) { return kParallel + small(confidence); }
  static bool is_small(int token) { return token < kConfidences; }
  static bool is_copied(int token) { return token >= kConfidences && token < kParallel; }
  static bool is_parallel(int token) { return token >= kParallel && token < kTokens; }
  // The small model's next token, before its pass: by the token before it, or by the previous
  // round.
  static int next(int context) { return kTokens + context; }
  // Matches of 1, 2, 3, 4, 8, 16 and 32 tokens or more; in the history of 4 or more.
  static constexpr int kOwnMatches = 7, kMatches = kOwnMatches + 4;
  static constexpr int kConfidences = 10, kParallel = kConfidences + 2 * kMatches;
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
  // The numbers that begin with those of an older version, whose matches had 1 to 4 tokens and were
  // all in the request's own text. Others, and other lists, are returned as they are.
  static std::vector<double> upgraded(std::span<const double> numbers, size_t others);

 private:
  static double prior(int event);
  AcceptanceEstimator& at(int event) { return events_[static_cast<size_t>(event)]; }
  const AcceptanceEstimator& at(int event) const { return events_[static_cast<size_t>(event)]; }

  std::array<AcceptanceEstimator, kNextParallel + 1> events_;
};

}  // namespace tandem
