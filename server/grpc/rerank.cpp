#include "server/grpc/rerank.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "server/grpc/request_from_proto.h"

namespace tandem {
namespace {

constexpr int kMaxDocuments = 1024;
constexpr int kConcurrentDocuments = 16;  // at a time: fairness and batches, not the whole queue
constexpr int kAlternatives = 20;
constexpr char kYes[] = "yes";
constexpr char kNo[] = "no";
constexpr char kInstruction[] =
    "Given a web search query, retrieve relevant passages that answer the query";

// Places of the scores, the highest first; equal ones in their order.
std::vector<int> best_first(const std::vector<double>& scores) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, std::less(),
                    [&](int i) { return std::pair(-scores[static_cast<size_t>(i)], i); });
  return order;
}

}  // namespace

RerankScorer scorer_of(Engine* engine, const std::string& model) {
  return {.score = [engine](ScoreRequest request,
                            const auto& done) { return engine->score(std::move(request), done); },
          .cancel = [engine](RequestId id) { engine->cancel(id); },
          .token_bytes = [engine, model](Token id) { return engine->token_bytes(model, id); }};
}

absl::Status check_rerank(const v1::RerankRequest& request) {
  Violations wrong;
  wrong.add(check_model_name(request.model()));
  if (request.query().empty()) wrong.add(out_of_range("query", "\"\"", "a text that is not empty"));
  if (request.documents_size() < 1 || request.documents_size() > kMaxDocuments) {
    wrong.add(out_of_range("documents", absl::StrCat(request.documents_size(), " texts"),
                           absl::StrCat("1 to ", kMaxDocuments)));
  }
  if (request.has_top_n() && (request.top_n() < 1 || request.top_n() > kMaxDocuments)) {
    wrong.add(out_of_range("top_n", request.top_n(), absl::StrCat("1 to ", kMaxDocuments)));
  }
  if (request.priority() < -100 || request.priority() > 100) {
    wrong.add(out_of_range("priority", request.priority(), "-100 to 100"));
  }
  return wrong.status();
}

std::string rerank_prompt(absl::string_view instruction, absl::string_view query,
                          absl::string_view document) {
  return absl::StrCat(
      "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
      "and "
      "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
      "<|im_start|>user\n<Instruct>: ",
      instruction, "\n<Query>: ", query, "\n<Document>: ", document,
      "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

std::shared_ptr<Rerank> Rerank::start(v1::RerankRequest request, const CallInfo& info,
                                      RerankScorer scorer, std::shared_ptr<OpenCall> open,
                                      Done done) {
  const std::shared_ptr<Rerank> rerank(
      new Rerank(std::move(request), info, std::move(scorer), std::move(open), std::move(done)));
  rerank->send_first(kConcurrentDocuments);
  return rerank;
}

Rerank::Rerank(v1::RerankRequest asked, const CallInfo& info, RerankScorer scorer,
               std::shared_ptr<OpenCall> open, Done done)
    : PartedCall(std::move(asked), &v1::RerankRequest::documents_size, info, scorer.cancel,
                 std::move(open), std::move(done)),
      scorer_(std::move(scorer)),
      scores_(static_cast<size_t>(request.documents_size())) {}

void Rerank::score(int document, bool word_is_yes, double yes_logprob) {
  auto one = part_request<ScoreRequest>();
  one.prompt = rerank_prompt(
      request.has_instruction() ? request.instruction() : absl::string_view(kInstruction),
      request.query(), request.documents(document));
  one.add_special_tokens = false;
  one.continuation = std::string(word_is_yes ? kYes : kNo);
  one.top_logprobs = word_is_yes ? kAlternatives : 0;
  sent(document,
       scorer_.score(std::move(one), [self = shared_from_this(), document, word_is_yes,
                                      yes_logprob](const absl::StatusOr<ScoreResult>& result) {
         self->scored(document, word_is_yes, yes_logprob, result);
       }));
}

void Rerank::scored(int document, bool word_is_yes, double yes_logprob,
                    const absl::StatusOr<ScoreResult>& result) {
  if (!result.ok()) {
    return fail(annotate(result.status(), absl::StrCat("documents[", document, "]")));
  }
  if (result->continuation.size() != 1) {
    return fail(absl::FailedPreconditionError(absl::StrCat(
        "model \"", request.model(), "\": \"", word_is_yes ? kYes : kNo, "\" is ",
        result->continuation.size(), " tokens; allowed: a reranker, where it is one")));
  }
  const TokenInfo& word = result->continuation[0];
  const double logprob = result->total_logprob;
  if (!word_is_yes) return set_score(document, yes_logprob, logprob);
  {
    const MutexLock lock(&mutex);
    prompt_tokens_ += result->usage.prompt_tokens;
  }
  for (const auto& [id, other] : word.top) {
    if (scorer_.token_bytes(id) == kNo) return set_score(document, logprob, other);
  }
  score(document, /*word_is_yes=*/false, logprob);
}

void Rerank::set_score(int document, double yes_logprob, double no_logprob) {
  {
    const MutexLock lock(&mutex);
    scores_[static_cast<size_t>(document)] = 1 / (1 + std::exp(no_logprob - yes_logprob));
  }
  part_done();
}

v1::RerankResponse Rerank::response() {
  std::vector<int> order = best_first(scores_);
  if (request.has_top_n() && static_cast<size_t>(request.top_n()) < order.size()) {
    order.resize(static_cast<size_t>(request.top_n()));
  }
  v1::RerankResponse response;
  response.set_request_id(request_id);
  for (const int i : order) {
    v1::RerankResult& result = *response.add_results();
    result.set_index(i);
    result.set_relevance_score(scores_[static_cast<size_t>(i)]);
    if (request.return_documents()) result.set_document(request.documents(i));
  }
  response.mutable_usage()->set_prompt_tokens(prompt_tokens_);
  return response;
}

}  // namespace tandem
