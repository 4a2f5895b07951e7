// From a request in the client's terms to a sequence that the loop can run.
//
// Runs on a thread of the ingress: templates, tokenizing, and every check that needs the model.
// Errors name the request's field, its value and what is allowed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/deployment.h"
#include "engine/host/requests/request.h"
#include "engine/sched/spec.h"
#include "engine/text/stop_matcher.h"

namespace tandem {

// The last tokens of a prompt, that decoding of what follows depends on.
inline constexpr size_t kDecodeContext = 8;

absl::StatusOr<std::vector<Token>> tokenize(const Deployment& deployment, const Prompt& prompt,
                                            bool add_special_tokens);

absl::StatusOr<std::string> detokenize(const Deployment& deployment, absl::Span<const int64_t> ids,
                                       bool skip_special_tokens);

// Ids as a client sent them: all in [0, vocabulary). `field` names them in the error.
absl::Status check_tokens(absl::string_view field, const std::vector<Token>& ids, int vocab_size);

struct Resolved {
  SequenceSpec spec;  // without id, listener and times
  std::string method;
  Contract contract = Contract::kExact;
  std::shared_ptr<const StopStrings> stops;
  // Of the model that writes, and the last tokens of the prompt as it has them.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Token> context;
};
// `fresh_seed` is used when the request names none.
absl::StatusOr<Resolved> resolve(const Deployment& deployment, const GenerateRequest& request,
                                 uint64_t fresh_seed);

// The tokens to score: prompt and continuation in one sequence, of which [begin, end) are scored.
struct ResolvedScore {
  std::vector<Token> tokens;
  int64_t prompt_tokens = 0;
  int begin = 0;
};
absl::StatusOr<ResolvedScore> resolve(const Deployment& deployment, const ScoreRequest& request);

}  // namespace tandem
