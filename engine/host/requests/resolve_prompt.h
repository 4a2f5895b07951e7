// The prompt of a request: chat template, tokenizer, and alignment of two tokenizers.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/host/deployment.h"
#include "engine/host/requests/request.h"

namespace tandem {

// A prompt in tokens.
struct TokenizedPrompt {
  std::vector<Token> tokens;  // of the model that answers
  std::vector<Token>
      read;  // SequenceSpec::conditioning_tokens: the large model's, if it runs other tokens
  std::vector<int> alignment;  // SequenceSpec::alignment
  std::vector<Token> context;  // the last tokens of the text in the answering model's tokenizer
};

// Renders, tokenizes and truncates the request's prompt. Empty if truncate_prompt_tokens is out of
// range, which the caller reports.
absl::StatusOr<TokenizedPrompt> tokenize_prompt(const Deployment& deployment,
                                                const GenerateRequest& request);

// In tokens of the large model.
absl::StatusOr<std::vector<Token>> tokenize(const Deployment& deployment, const Prompt& prompt,
                                            bool add_special_tokens);

absl::StatusOr<std::string> detokenize(const Deployment& deployment, absl::Span<const int64_t> ids,
                                       bool skip_special_tokens);

// Checks that a client's ids are in [0, vocab_size). `field` names them in the error.
absl::Status check_tokens(absl::string_view field, const std::vector<Token>& ids, int vocab_size);

// INVALID_ARGUMENT, reason CONTEXT_LENGTH_EXCEEDED.
absl::Status too_long(int64_t prompt, const std::string& allowed);

}  // namespace tandem
