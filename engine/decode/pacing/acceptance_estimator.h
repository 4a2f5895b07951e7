#pragma once

#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// Exponentially decayed rate at which draft tokens are accepted.
class AcceptanceEstimator {
 public:
  AcceptanceEstimator() = default;
  AcceptanceEstimator(double accepted, double trials) : accepted_(accepted), trials_(trials) {}

  // memory: the weight of all earlier observations relative to this one.
  void observe(double accepted, double trials, double memory) {
    accepted_ = memory * accepted_ + accepted;
    trials_ = memory * trials_ + trials;
    ++observations_;
  }
  void observe(bool accepted, double memory) { observe(accepted ? 1 : 0, 1, memory); }

  // The rate with a prior that counts as `weight` trials.
  double rate(double prior, double weight) const {
    return (accepted_ + weight * prior) / (trials_ + weight);
  }
  // The same with a prior whose weight declines with the number of observations.
  double rate_with_fading_prior(double prior, double weight) const {
    return rate(prior, weight * weight / (weight + observations_));
  }
  double rate() const { return accepted_ / trials_; }  // REQUIRES: trials
  double observations() const { return observations_; }

  // Reduces the weight of what was observed: by a factor, or to at most `most` trials.
  void scale(double factor) {
    accepted_ *= factor;
    trials_ *= factor;
  }
  void limit(double most) {
    if (trials_ > most) scale(most / trials_);
  }
  void visit(SavedNumbers* saved) {
    saved->visit(&accepted_);
    saved->visit(&trials_);
    saved->visit(&observations_);
  }

 private:
  double accepted_ = 0, trials_ = 0;
  double observations_ = 0;  // not decayed
};

}  // namespace tandem
