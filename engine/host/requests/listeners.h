// Listeners of sequences without text output (requests/stream.h has the others).
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "engine/async/worker.h"
#include "engine/base/mutex.h"
#include "engine/decode/score.h"
#include "engine/host/requests/claims.h"
#include "engine/host/requests/request.h"
#include "engine/host/requests/resolve.h"
#include "engine/sched/spec.h"

namespace tandem {

// Ignores the tokens of a sequence and waits for its end.
class WarmUp final : public SequenceListener {
 public:
  void on_admitted() override {}
  void on_tokens(std::span<Emitted>) override {}
  void on_end(const SequenceEnd& end) override {
    const MutexLock lock(&mutex_);
    status_ = end.status;
    ended_ = true;
    changed_.notify_all();
  }
  absl::Status wait() {
    MutexLock lock(&mutex_);
    changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; });
    return status_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Collects scores and delivers them on a text thread.
class ScoreListener final : public SequenceListener {
 public:
  using Done = std::function<void(absl::StatusOr<ScoreResult>)>;

  // `claims` are released as the request proceeds.
  ScoreListener(Worker* pool, ResolvedScore request, std::shared_ptr<Claims> claims, Done done,
                std::function<void()> ended)
      : pool_(pool),
        request_(std::move(request)),
        claims_(std::move(claims)),
        done_(std::move(done)),
        ended_(std::move(ended)) {}

  std::vector<Scored>* scored() { return &scored_; }
  int begin() const { return request_.begin; }
  void on_admitted() override { claims_->admitted(); }
  void on_tokens(std::span<Emitted>) override {}
  void on_end(const SequenceEnd& end) override;

 private:
  ScoreResult result() const;

  Worker* const pool_;
  const ResolvedScore request_;
  const std::shared_ptr<Claims> claims_;
  const Done done_;
  const std::function<void()> ended_;
  std::vector<Scored> scored_;
};

// Normalizes an embedding and delivers it on a text thread.
class EmbedListener final : public SequenceListener {
 public:
  using Done = std::function<void(absl::StatusOr<EmbedResult>)>;

  // `claims` are released as the request proceeds.
  EmbedListener(Worker* pool, ResolvedEmbed request, std::shared_ptr<Claims> claims, Done done,
                std::function<void()> ended)
      : pool_(pool),
        request_(std::move(request)),
        claims_(std::move(claims)),
        done_(std::move(done)),
        ended_(std::move(ended)) {}

  std::vector<double>* pooled() { return &pooled_; }
  void on_admitted() override { claims_->admitted(); }
  void on_tokens(std::span<Emitted>) override {}
  void on_end(const SequenceEnd& end) override;

 private:
  absl::StatusOr<EmbedResult> result() const;

  Worker* const pool_;
  const ResolvedEmbed request_;
  const std::shared_ptr<Claims> claims_;
  const Done done_;
  const std::function<void()> ended_;
  std::vector<double> pooled_;
};

}  // namespace tandem
