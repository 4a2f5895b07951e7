// Statistics that the requests of a deployment share. A new request begins with them.
#pragma once

#include <bit>
#include <map>

#include "engine/decode/pacing/cost_model.h"
#include "engine/decode/pacing/draft_acceptance.h"
#include "engine/decode/pacing/exploration.h"
#include "engine/decode/pacing/mask_acceptance.h"

namespace tandem {

// Decayed sums over recent rounds.
struct RecentRounds {
  double rounds = 0, tokens = 0, drafts = 0, small_passes = 0;

  void observe(double memory, int round_tokens, int round_drafts, int round_passes) {
    scale(memory);
    rounds += 1;
    tokens += round_tokens;
    drafts += round_drafts;
    small_passes += round_passes;
  }
  void limit(double most) {  // rounds
    if (rounds > most) scale(most / rounds);
  }

 private:
  void scale(double factor) {
    for (double* sum : {&rounds, &tokens, &drafts, &small_passes}) *sum *= factor;
  }
};

// Of DraftStopping.
struct DraftStats {
  static constexpr int kTrial = 2;     // rounds with drafts of each request in a trial
  static constexpr int kPlain = 96;    // rounds with drafts until one without
  static constexpr int kFurther = 48;  // rounds until one with a draft more than pays

  DraftAcceptance acceptance;
  RecentRounds recent;
  CostModel large, small;  // of a pass, by its rows beyond the first
  Exploration exploration{kTrial, kPlain};
  int since_further = 0;  // rounds
  int too_unsure = 0;     // drafts below a request's min_draft_probability
  int streams = 0;        // requests that use this now
};

// Of TreeSize. Costs depend on the number of concurrent requests: rows that are free in a batch of
// one may cost as much as a token in a batch of eight. Devices, context lengths and other methods
// are not distinguished: costs are those of recent rounds of any of them.
struct TreeStats {
  static constexpr int kMost = 16;          // masks and candidates
  static constexpr double kMemory = 0.995;  // of a token
  static constexpr int kTrial = 3;          // rounds: the first one has masks alone
  static constexpr int kPlainEvery = 128;   // rounds with rows: a plain one loses their predictions

  struct Load {
    CostModel cost;
    Exploration exploration{kTrial, kPlainEvery};
  };
  Load& load() { return loads[std::bit_width(static_cast<unsigned>(streams))]; }

  MaskAcceptance acceptance{kMost, kMost, nullptr, kMemory};
  AcceptanceEstimator yield;       // tokens of recent trees, per token expected of them
  int streams = 0;                 // requests that use this now
  std::map<int, Load> loads = {};  // by streams: 0, 1, 2-3, 4-7 ...
};

// Loop thread only.
struct AcceptanceStats {
  DraftStats drafts;
  TreeStats trees;
};

}  // namespace tandem
