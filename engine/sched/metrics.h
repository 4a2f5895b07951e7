// The loop's metrics, which a scraper may read at any time (base/stats.h).
//
// Series come and go with deployments, models and LoRA adapters. A request points to its Series, so
// the hot path never looks up a label.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
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

// One per loaded model.
struct ModelSeries {
  std::string model;  // model name
  std::string device;
  std::atomic<int> page_rows{0};       // rows per KV page
  std::array<Counter, kRoles> passes;  // done, by Role
  Counter batches;
  Histogram batch_rows{kRowsBuckets};
  Gauge kv_pages_total;
  Gauge kv_pages_used;
  Gauge kv_pages_cached;  // owned by the prefix cache alone
  Gauge weight_bytes;
  Gauge kv_bytes;
};

// The series in use, oldest first, by `model` and a second label. Thread-safe.
//
// A loop over the set visits those that exist when it begins, and keeps them until it ends.
template <class T, std::string T::* Label>
class SeriesSet {
 public:
  // The series of these names, which exists while the result or a copy of it does.
  std::shared_ptr<T> open(const std::string& model, const std::string& label) {
    const MutexLock lock(&mutex_);
    std::erase_if(series_, [](const auto& gone) { return gone.expired(); });
    for (const std::weak_ptr<T>& known : series_) {
      std::shared_ptr<T> same = known.lock();
      if (same != nullptr && same->model == model && (*same).*Label == label) return same;
    }
    const auto fresh = std::make_shared<T>();
    fresh->model = model;
    (*fresh).*Label = label;
    series_.push_back(fresh);
    return fresh;
  }
  // Adds one without names, which stays.
  T& emplace_back() {
    const MutexLock lock(&mutex_);
    series_.push_back(kept_.emplace_back(std::make_shared<T>()));
    return *kept_.back();
  }
  std::vector<std::shared_ptr<T>> all() const {
    const MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (const std::weak_ptr<T>& known : series_) {
      if (std::shared_ptr<T> series = known.lock()) all.push_back(std::move(series));
    }
    return all;
  }

  class Iterator {
   public:
    explicit Iterator(std::vector<std::shared_ptr<T>> all) : all_(std::move(all)) {}
    T& operator*() const { return *all_[at_]; }
    Iterator& operator++() { return ++at_, *this; }
    bool operator==(std::default_sentinel_t) const { return at_ == all_.size(); }

   private:
    std::vector<std::shared_ptr<T>> all_;
    size_t at_ = 0;
  };
  Iterator begin() const { return Iterator(all()); }
  std::default_sentinel_t end() const { return {}; }
  size_t size() const { return all().size(); }
  // Valid while the series is in use.
  T& operator[](size_t i) const { return *all().at(i); }
  T& front() const { return (*this)[0]; }

 private:
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<T>> series_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<T>> kept_ ABSL_GUARDED_BY(mutex_);
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

// KV pages in files, and the bytes that they have there.
struct StoredPages {
  Counter pages;
  Counter bytes;
};

struct Metrics {
  SeriesSet<Series, &Series::method> series;
  SeriesSet<AdapterSeries, &AdapterSeries::adapter> adapters;
  SeriesSet<ModelSeries, &ModelSeries::device> models;
  Gauge requests_waiting;     // of all series, and of requests without one
  Gauge requests_tokenizing;  // before the loop
  Gauge waiting_bytes;        // memory of requests before admission
  Gauge requests_paused;      // for their readers
  std::array<Counter, kRejectReasons> rejected;
  // Requests that ended before they reached the loop, by status code.
  std::array<Counter, kStatusCodes> refused;
  Counter preemptions;
  Counter prefix_cache_queries;  // in tokens
  Counter prefix_cache_hits;
  Counter device_copy_bytes;
  // Of the prefix store: written, restored, and those of files that are damaged or of another build
  // or model.
  StoredPages prefixes_saved, prefixes_restored, prefixes_refused;
};

}  // namespace tandem
