// BiLD without caches (docs/architecture.md, Algorithms).
#pragma once

#include <cmath>
#include <limits>

#include "engine/base/outcome.h"
#include "engine/decode/bild.h"
#include "tests/reference/rows.h"

namespace tandem::reference {

struct Bilded {
  bool masked = false;  // small has masks, which spare it passes
  Tokens tokens;
  MethodStats stats;
  // Early exit's cost: rows that went through small's layers, and through those above.
  int64_t rows_fed = 0;
  int64_t rows_verified = 0;
};

// `tentative`: what small's draws take their numbers from. Any but kDraft is broken: a correction
// would depend on what it replaces.
inline Bilded bild(const Model& large, const Model& small, const Tokens& prompt, const Warp& w,
                   const BildParams& a, const Tokens& eos, int max_new_tokens,
                   sampling::Purpose tentative = sampling::Purpose::kDraft) {
  Bilded result;
  MethodStats& stats = result.stats;
  const bool final_at_once = std::isinf(a.rollback_threshold) && !a.verify_eos;
  const int limit = a.window ? *a.window : a.max_small_run;  // 0: none
  Output out{prompt, eos, max_new_tokens, {}, false};
  stats.large_tokens += out.push(Row(large, out.seq).draw(w));
  result.rows_fed = result.rows_verified = static_cast<int64_t>(prompt.size());
  stats.large_passes = 1;
  while (!out.ended) {
    const int start = static_cast<int>(out.seq.size());
    Tokens y;
    // The last token is not worth a small pass, as large runs in any case.
    const int most = final_at_once ? std::numeric_limits<int>::max() : out.remaining() - 1;
    int run = 0, asked = 0;
    bool fell_back = false;
    while (run < most && !out.ended && !out.would_end(y) && (limit == 0 || run < limit)) {
      const Row row(small, joined(out.seq, y));
      ++asked;
      fell_back = !a.window && row.confidence() < a.fallback_threshold;
      if (fell_back) break;
      ++run;
      if (final_at_once) {
        stats.small_tokens += out.push(row.draw(w));
      } else {
        y.push_back(row.draw(w, tentative, start));
      }
    }
    const bool ends = out.would_end(y);
    stats.own[BildFigures::kFallbacks] += fell_back;
    stats.own[BildFigures::kForcedCalls] +=
        limit > 0 && run == limit && !fell_back && !ends && !out.ended;
    stats.small_passes += asked;
    if (out.ended) break;
    const Tokens before = out.seq;
    const size_t r = y.size();
    const size_t checked = r - (ends && !a.verify_eos && out.is_eos(y.back()) ? 1 : 0);
    const size_t rows = ends ? checked : r + 1;
    result.rows_fed += std::max(asked, static_cast<int>(rows));
    result.rows_verified += static_cast<int64_t>(rows);
    stats.large_passes += rows > 0;
    size_t m = 0;
    for (; m < checked; ++m) {
      const Row row(large, joined(before, Tokens(y.begin(), y.begin() + static_cast<int>(m))));
      const bool own = w.greedy() && row.argmax == y[m];
      if (-row.log_softmax(y[m]) > a.rollback_threshold && !own) break;
    }
    const bool rolled_back = m < checked;
    const size_t kept = rolled_back ? m : r;
    stats.own[BildFigures::kRollbacks] += rolled_back;
    stats.own[BildFigures::kRolledBackTokens] += static_cast<int64_t>(r - kept);
    if (!final_at_once) {
      stats.count_verification(static_cast<int64_t>(r), static_cast<int64_t>(kept));
    }
    for (size_t i = 0; i < kept; ++i) stats.small_tokens += out.push(y[i]);
    if (!out.ended) stats.large_tokens += out.push(Row(large, out.seq).draw(w));
  }
  result.tokens = out.tokens;
  return result;
}

}  // namespace tandem::reference
