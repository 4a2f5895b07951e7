// Requests and answers of the token endpoints: POST /tokenize and /detokenize in vLLM's form (and
// llama.cpp's, whose names are `content` and `add_special`), and Anthropic's POST
// /v1/messages/count_tokens. Pure functions; errors are INVALID_ARGUMENT and quote no texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

// {model, prompt, add_special_tokens, return_token_strs} or {model, messages, ...}.
absl::StatusOr<v1::TokenizeRequest> tokenize_from(const std::string& body);
// {model, tokens, skip_special_tokens}.
absl::StatusOr<v1::DetokenizeRequest> detokenize_from(const std::string& body);
// A Messages request without `max_tokens`.
absl::StatusOr<v1::TokenizeRequest> count_tokens_from(const std::string& body);

// {count, max_model_len, tokens, token_strs}. `texts`: null if they were not requested.
std::string tokenize_json(const std::vector<int32_t>& tokens, const std::vector<std::string>* texts,
                          int64_t context_length);
std::string detokenize_json(absl::string_view text);  // {prompt, content}
std::string count_tokens_json(size_t tokens);         // {input_tokens}

}  // namespace tandem::openai
