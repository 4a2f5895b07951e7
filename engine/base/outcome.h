// The origin of tokens, and the end of requests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// Models and heads that propose and confirm tokens.
enum class Source : uint8_t { kLarge, kSmall, kMask, kEarlyHead, kNgram, kGrammar };
const char* source_name(Source s);  // "large", "small", "mask", "early_head", "ngram", "grammar"

struct Provenance {
  Source proposed = Source::kLarge;
  Source confirmed = Source::kLarge;
  bool corrected = false;  // replaces a rejected proposal
  int index = 0;           // of the proposer, from 0: the mask of kMask, the rank of kEarlyHead
  friend bool operator==(const Provenance&, const Provenance&) = default;
};

enum class FinishReason : uint8_t {
  kEos,
  kStopSequence,
  kStopToken,
  kMaxTokens,
  kTimeLimit,
  kCancelled,
};
inline constexpr int kFinishReasons = 6;
const char* finish_reason_name(FinishReason r);  // "EOS", "STOP_SEQUENCE", ...

// Statistics of a request.
struct MethodStats {
  // Members updated by every pass and token come first, on one cache line.
  int64_t large_passes = 0;
  int64_t small_passes = 0;
  double large_seconds = 0;  // time its passes spent in batches of the large model
  double small_seconds = 0;
  double share_seconds = 0;  // its share of its batches' time (engine/sched/batch_cost.h)
  // Final tokens, by Provenance::proposed: the large model's, and all others.
  int64_t large_tokens = 0;
  int64_t small_tokens = 0;

  double mean_batch_rows = 0;  // mean rows of its passes' batches
  double queue_seconds = 0;
  double prefill_seconds = 0;  // admission to first token
  double decode_seconds = 0;   // first token to end
  int64_t preemptions = 0;
  int64_t cached_tokens = 0;  // prompt rows from the prefix cache or another choice

  // The part of small_tokens from kMask and kEarlyHead, by Provenance::index.
  std::vector<int64_t> tokens_by_index;
  // Of methods that verify drafts: [i]: verifications that accepted i tokens.
  std::vector<int64_t> accept_lengths;
  int64_t draft_tokens = 0;  // proposed
  // Figures of the method, named by its entry in this order (engine/host/methods/entry.h).
  static constexpr size_t kOwn = 13;
  std::array<int64_t, kOwn> own{};

  // Counts a final token.
  void count_token(const Provenance& by) {
    ++(by.proposed == Source::kLarge ? large_tokens : small_tokens);
    if (by.proposed != Source::kMask && by.proposed != Source::kEarlyHead) return;
    const auto i = static_cast<size_t>(by.index);
    if (tokens_by_index.size() <= i) tokens_by_index.resize(i + 1);
    ++tokens_by_index[i];
  }
  // Counts a verification that accepted `accepted` of `drafted` tokens. No-op without drafts.
  void count_verification(int64_t drafted, int64_t accepted) {
    if (drafted == 0) return;
    draft_tokens += drafted;
    const auto i = static_cast<size_t>(accepted);
    if (accept_lengths.size() <= i) accept_lengths.resize(i + 1);
    ++accept_lengths[i];
  }
};

}  // namespace tandem
