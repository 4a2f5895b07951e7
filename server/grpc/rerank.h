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
#include "server/grpc/parted_call.h"
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

class Rerank : public PartedCall<v1::RerankRequest, v1::RerankResponse>,
               public std::enable_shared_from_this<Rerank> {
 public:
  // REQUIRES: check_rerank(request) is OK. `open` is released before `done` is called. `done` is
  // called once, possibly within start(). The first error of a document ends the call and cancels
  // the others.
  static std::shared_ptr<Rerank> start(v1::RerankRequest request, const CallInfo& info,
                                       RerankScorer scorer, std::shared_ptr<OpenCall> open,
                                       Done done);

 private:
  Rerank(v1::RerankRequest asked, const CallInfo& info, RerankScorer scorer,
         std::shared_ptr<OpenCall> open, Done done);

  void submit(int document) override { score(document, /*word_is_yes=*/true, 0); }
  v1::RerankResponse response() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Scores `yes`, or `no` after `yes` has been scored.
  void score(int document, bool word_is_yes, double yes_logprob);
  void scored(int document, bool word_is_yes, double yes_logprob,
              const absl::StatusOr<ScoreResult>& result);
  void set_score(int document, double yes_logprob, double no_logprob);

  const RerankScorer scorer_;
  std::vector<double> scores_ ABSL_GUARDED_BY(mutex);
  int64_t prompt_tokens_ ABSL_GUARDED_BY(mutex) = 0;
};

}  // namespace tandem
