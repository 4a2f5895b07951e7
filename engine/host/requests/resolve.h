// From a request in the client's terms to a sequence that the loop can run.
//
// Runs on a tokenizing thread. Errors name the request's field, its value and what is allowed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/embedding.h"
#include "engine/grammar/grammar_constraint.h"
#include "engine/host/deployment.h"
#include "engine/host/requests/answer_format.h"
#include "engine/host/requests/request.h"
#include "engine/host/requests/resolve_prompt.h"
#include "engine/sched/spec.h"
#include "engine/text/stop_matcher.h"

namespace tandem {

struct Resolved {
  SequenceSpec spec;  // without id, listener and times
  std::string method;
  Contract contract = Contract::kExact;
  std::shared_ptr<const StopStrings> stops;
  std::shared_ptr<GrammarConstraint> constraint;  // that of spec.warp; null: none
  // Of the model that answers, and the last tokens of the prompt in it.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Token> context;
  std::optional<AnswerPlan> answer;
};
// `fresh_seed` is used if the request has none.
absl::StatusOr<Resolved> resolve(const Deployment& deployment, const GenerateRequest& request,
                                 uint64_t fresh_seed);

// Prompt and continuation in one sequence. Tokens from `begin` on are scored.
struct ResolvedScore {
  std::vector<Token> tokens;
  int64_t prompt_tokens = 0;
  int begin = 0;
  AdapterRef adapter = nullptr;  // null: none
};
absl::StatusOr<ResolvedScore> resolve(const Deployment& deployment, const ScoreRequest& request);

// The tokens to embed.
struct ResolvedEmbed {
  std::vector<Token> tokens;
  const EmbeddingSettings* settings = nullptr;  // the model's, which outlive the request
  bool normalize = true;
  size_t dimensions = 0;  // of the result
};
absl::StatusOr<ResolvedEmbed> resolve(const Deployment& deployment, const EmbedRequest& request);

}  // namespace tandem
