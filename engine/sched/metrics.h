// The loop's metrics, which a scraper may read at any time (base/stats.h).
//
// The set of series is fixed when the engine starts, except for those of LoRA adapters. A request
// points to its Series, so the hot path never looks up a label.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/base/mutex.h"
#include "engine/base/outcome.h"
#include "engine/base/stats.h"
#include "engine/decode/gen.h"

namespace tandem {

// Bucket bounds; times in seconds, dense below 10 ms (docs/CONVENTIONS.md).
extern const std::vector<double> kFirstTokenBuckets;
extern const std::vector<double> kInterTokenBuckets;
extern const std::vector<double> kRequestBuckets;
extern const std::vector<double> kRowsBuckets;
extern const std::vector<double> kLengthBuckets;
extern const std::vector<double> kTokensPerPassBuckets;
extern const std::vector<double> kAcceptLengthBuckets;

inline constexpr int kStatusCodes = 17;  // gRPC's

// The longest draft; each position is counted.
inline constexpr size_t kDraftPositions = 64;
inline constexpr size_t kProposers = 16;  // mask tokens, or ranks of an early layer's candidates

// One per (deployment, method).
struct Series {
  std::string model;   // deployment name
  std::string method;  // "autoregressive", ...
  Gauge requests_running;
  Gauge requests_waiting;
  Counter prompt_tokens;
  Counter generated_tokens;
  std::array<Counter, kFinishReasons> finished;  // by FinishReason
  std::array<Counter, kStatusCodes> failed;      // by status code
  Histogram time_to_first_token{kFirstTokenBuckets};
  Histogram inter_token_latency{kInterTokenBuckets};
  Histogram queue_time{kRequestBuckets};
  Histogram prefill_time{kRequestBuckets};
  Histogram decode_time{kRequestBuckets};
  Histogram e2e_latency{kRequestBuckets};
  Histogram prompt_length{kLengthBuckets};
  Histogram answer_length{kLengthBuckets};  // of a request's first choice
  Histogram tokens_per_pass{kTokensPerPassBuckets};

  // Of methods that verify drafts. A draft is the input of one verification.
  Counter drafts;
  Counter draft_tokens;
  Counter accepted_tokens;
  std::array<Counter, kDraftPositions> accepted_at;  // [i]: drafts whose token i was accepted
  Histogram accept_length{kAcceptLengthBuckets};
  std::array<Counter, MethodStats::kOwn> own;  // MethodStats::own
  // [i]: final tokens that mask or candidate i proposed. The last entry includes all later ones.
  std::array<Counter, kProposers> proposed_by;

  // Adds a request's statistics, once, when it has ended.
  void add_method_stats(const MethodStats& stats);
};

// One per (deployment, LoRA adapter).
struct AdapterSeries {
  std::string model;  // deployment name
  std::string adapter;
  Gauge requests_running;
  Gauge requests_waiting;
  Counter requests;  // admitted
};

// The series of adapters that are loaded or still have requests. Thread-safe.
class AdapterSeriesSet {
 public:
  // The series of these names, which exists while the result or a copy of it does.
  std::shared_ptr<AdapterSeries> open(const std::string& model, const std::string& adapter);
  // Oldest first.
  std::vector<std::shared_ptr<const AdapterSeries>> all() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<AdapterSeries>> series_ ABSL_GUARDED_BY(mutex_);
};

// One per loaded model.
struct ModelSeries {
  std::string model;  // model name
  std::string device;
  int page_rows = 0;                   // rows per KV page
  std::array<Counter, kRoles> passes;  // done, by Role
  Counter batches;
  Histogram batch_rows{kRowsBuckets};
  Gauge kv_pages_total;
  Gauge kv_pages_used;
  Gauge kv_pages_cached;  // owned by the prefix cache alone
  Gauge weight_bytes;
  Gauge kv_bytes;
};

enum class RejectReason {
  kQueueFull,
  kQueueTokens,
  kQueueBytes,
  kQueueClient,
  kQueueTime,
  kTooLarge,
  kInvalid,
  kDraining,
  kDeviceLost,
  kPriority,
  kQuotaOpen,
  kQuotaRequests,
  kQuotaTokens,
};
inline constexpr int kRejectReasons = 13;
const char* reject_reason_name(RejectReason r);  // "queue_full", ...

struct Metrics {
  std::deque<Series> series;  // fixed after start
  AdapterSeriesSet adapters;
  std::deque<ModelSeries> models;  // fixed after start
  Gauge requests_waiting;          // of all series, and of requests without one
  Gauge requests_tokenizing;       // before the loop
  Gauge waiting_bytes;             // memory of requests before admission
  Gauge requests_paused;           // for their readers
  std::array<Counter, kRejectReasons> rejected;
  // Requests that ended before they reached the loop, by status code.
  std::array<Counter, kStatusCodes> refused;
  Counter preemptions;
  Counter prefix_cache_queries;  // in tokens
  Counter prefix_cache_hits;
  Counter device_copy_bytes;
};

}  // namespace tandem
