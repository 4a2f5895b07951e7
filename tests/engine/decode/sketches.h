// Methods for tests of the contract, with what they counted.
#pragma once

#include <limits>
#include <utility>

#include "engine/decode/bild.h"
#include "engine/decode/bita.h"
#include "engine/decode/gen.h"
#include "engine/decode/speculative.h"

namespace tandem::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

struct BildArgs {
  int run = 4;
  float fallback = 0.1F;
  float rollback = 0.69F;  // < ln 2: EXACT when greedy
};

struct SketchStats {
  int rollbacks = 0;
  int fallbacks = 0;
  int accepted = 0;
};

inline Task<void> bild(Gen g, BildArgs a, SketchStats* stats) {
  BildParams params;
  params.max_small_run = a.run;
  params.fallback_threshold = a.fallback;
  params.rollback_threshold = a.rollback;
  co_await tandem::bild(g, params);
  stats->rollbacks += static_cast<int>(g.stats().own[BildFigures::kRollbacks]);
  stats->fallbacks += static_cast<int>(g.stats().own[BildFigures::kFallbacks]);
}

inline Task<void> speculative(Gen g, int gamma, SketchStats* stats) {
  SpeculativeParams params;
  params.draft_tokens = gamma;
  co_await tandem::speculative(g, params);
  for (size_t n = 0; n < g.stats().accept_lengths.size(); ++n) {
    stats->accepted += static_cast<int>(n) * static_cast<int>(g.stats().accept_lengths[n]);
  }
}

// The adapter is the role's (CastRole::mask_adapter), or none: the fake device knows masks of any.
inline Task<void> bita(Gen g, BitaParams params, SketchStats* stats) {
  co_await tandem::bita(g, params);
  stats->accepted += static_cast<int>(g.stats().small_tokens);
}

}  // namespace tandem::test
