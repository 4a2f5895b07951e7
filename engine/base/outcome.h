// How tokens came to be and how requests end.
#pragma once

#include <cstdint>

namespace tandem {

// Which model or head proposed a token and which one confirmed it.
enum class Source : uint8_t { kLarge, kSmall, kMask, kEarlyHead, kNgram };
const char* source_name(Source s);  // "large", "small", "mask", "early_head", "ngram"

struct Provenance {
  Source proposed = Source::kLarge;
  Source confirmed = Source::kLarge;
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
  int64_t large_passes = 0;
  int64_t small_passes = 0;
  double mean_batch_rows = 0;  // rows of the batches this request's passes shared, mean
  double queue_seconds = 0;
  double prefill_seconds = 0;  // admission to first token
  double decode_seconds = 0;   // first token to end
  double large_seconds = 0;    // time its passes spent in batches of the large model
  double small_seconds = 0;
  int64_t preemptions = 0;
};

}  // namespace tandem
