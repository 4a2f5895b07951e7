// How tokens came to be and how requests end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// Which model or head proposed a token and which one confirmed it.
enum class Source : uint8_t { kLarge, kSmall, kMask, kEarlyHead, kNgram };
const char* source_name(Source s);  // "large", "small", "mask", "early_head", "ngram"

struct Provenance {
  Source proposed = Source::kLarge;
  Source confirmed = Source::kLarge;
  bool corrected = false;  // stands where the confirming model dropped a proposal
  int index = 0;  // which of several proposed it, from 0: of kMask the mask, of kEarlyHead the rank
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

// What a request cost.
struct MethodStats {
  // What grows with every pass and token stands first, so that a round touches one line of it.
  int64_t large_passes = 0;
  int64_t small_passes = 0;
  double large_seconds = 0;  // time its passes spent in batches of the large model
  double small_seconds = 0;
  double share_seconds = 0;  // of these batches' time, its share (engine/sched/batch_cost.h)
  // Final tokens, by Provenance::proposed: the large model's own, and all others.
  int64_t large_tokens = 0;
  int64_t small_tokens = 0;

  double mean_batch_rows = 0;  // rows of the batches this request's passes shared, mean
  double queue_seconds = 0;
  double prefill_seconds = 0;  // admission to first token
  double decode_seconds = 0;   // first token to end
  int64_t preemptions = 0;
  int64_t cached_tokens = 0;  // of the prompt: rows that the prefix cache or another choice had

  // Of small_tokens those of kMask and kEarlyHead, by Provenance::index.
  std::vector<int64_t> tokens_by_index;
  // Speculative sampling, and all that verifies drafts: [i]: verifications that kept i of them.
  std::vector<int64_t> accept_lengths;
  int64_t draft_tokens = 0;  // proposed
  // The method's own figures; its entry names them, in this order (engine/host/methods/entry.h).
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
  // Counts a verification that kept `accepted` of `drafted` tokens. A pass with no draft is none.
  void count_verification(int64_t drafted, int64_t accepted) {
    if (drafted == 0) return;
    draft_tokens += drafted;
    const auto i = static_cast<size_t>(accepted);
    if (accept_lengths.size() <= i) accept_lengths.resize(i + 1);
    ++accept_lengths[i];
  }
};

}  // namespace tandem
