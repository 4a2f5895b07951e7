// Listeners of sequences without text output (requests/stream.h has the others).
#pragma once

#include <functional>
#include <memory>
#include <span>
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

// Delivers the result of a sequence on a text thread.
template <class Request, class Result>
class ResultListener : public SequenceListener {
 public:
  using Done = std::function<void(absl::StatusOr<Result>)>;

  // `claims` are released as the request proceeds.
  ResultListener(Worker* pool, Request resolved, std::shared_ptr<Claims> claims, Done done,
                 std::function<void()> ended)
      : request(std::move(resolved)),
        pool_(pool),
        claims_(std::move(claims)),
        done_(std::move(done)),
        ended_(std::move(ended)) {}

  void on_admitted() override { claims_->admitted(); }
  void on_tokens(std::span<Emitted>) override {}
  void on_end(const SequenceEnd& end) override {
    claims_->ended();
    pool_->post([done = done_, ended = ended_,
                 result = end.status.ok() ? result() : absl::StatusOr<Result>(end.status)] {
      done(result);
      ended();
    });
  }

 protected:
  virtual absl::StatusOr<Result> result() const = 0;

  const Request request;

 private:
  Worker* const pool_;
  const std::shared_ptr<Claims> claims_;
  const Done done_;
  const std::function<void()> ended_;
};

// Collects scores.
class ScoreListener final : public ResultListener<ResolvedScore, ScoreResult> {
 public:
  using ResultListener::ResultListener;

  std::vector<Scored>* scored() { return &scored_; }
  int begin() const { return request.begin; }

 private:
  absl::StatusOr<ScoreResult> result() const override;

  std::vector<Scored> scored_;
};

// Normalizes an embedding.
class EmbedListener final : public ResultListener<ResolvedEmbed, EmbedResult> {
 public:
  using ResultListener::ResultListener;

  std::vector<double>* pooled() { return &pooled_; }

 private:
  absl::StatusOr<EmbedResult> result() const override;

  std::vector<double> pooled_;
};

}  // namespace tandem
