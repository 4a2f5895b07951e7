// Generation.Rerank: one Score request per document, a few at a time.
//
// The prompt and the score are those of Qwen3-Reranker (model card of Qwen/Qwen3-Reranker-0.6B):
// the model says whether the document meets the query, and the score is p(yes) / (p(yes) + p(no)).
// One pass gives both probabilities, as long as `no` is among the best 20 tokens; otherwise a
// second request scores `no`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/mutex.h"
#include "engine/host/engine.h"
#include "server/grpc/call_info.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// What a rerank call uses of the engine.
struct RerankScorer {
  std::function<RequestId(ScoreRequest, std::function<void(absl::StatusOr<ScoreResult>)>)> score;
  std::function<void(RequestId)> cancel;
  std::function<std::string(Token)> token_bytes;
};

RerankScorer scorer_of(Engine* engine, const std::string& model);

// All violations of the request at once.
absl::Status check_rerank(const v1::RerankRequest& request);

std::string rerank_prompt(absl::string_view instruction, absl::string_view query,
                          absl::string_view document);

// A call. Thread-safe.
class Rerank : public std::enable_shared_from_this<Rerank> {
 public:
  using Done = std::function<void(absl::StatusOr<v1::RerankResponse>)>;

  // REQUIRES: check_rerank(request) is OK. `open` is released before `done` is called. `done` is
  // called once, possibly within start(). The first error of a document ends the call and cancels
  // the others.
  static std::shared_ptr<Rerank> start(v1::RerankRequest request, const CallInfo& info,
                                       RerankScorer scorer, std::shared_ptr<OpenCall> open,
                                       Done done);

  // Ends it with CANCELLED.
  void cancel();

 private:
  Rerank(v1::RerankRequest request, const CallInfo& info, RerankScorer scorer,
         std::shared_ptr<OpenCall> open, Done done);

  void submit_next();
  // Scores `yes`, or `no` after `yes` has been scored.
  void submit(int document, bool word_is_yes, double yes_logprob);
  void scored(int document, bool word_is_yes, double yes_logprob,
              const absl::StatusOr<ScoreResult>& result);
  void set_score(int document, double yes_logprob, double no_logprob);
  void fail(const absl::Status& status);
  v1::RerankResponse response() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::RerankRequest request_;
  const std::string client_;
  const std::string host_;
  const std::string request_id_;
  const TimePoint deadline_;
  const RerankScorer scorer_;

  Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);  // null: called
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
  int missing_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<double> scores_ ABSL_GUARDED_BY(mutex_);
  std::vector<RequestId> running_ ABSL_GUARDED_BY(mutex_);  // by document
  int64_t prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem
