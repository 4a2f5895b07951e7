// Token counts of an answer in OpenAI's JSON, and statistics of drafts in vLLM's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

class UsageTotal {
 public:
  // Adds a choice; the tokens of its prompt too if it is the first choice of the prompt.
  void add(const v1::Finished& choice, bool first_of_prompt);

  // The value of "usage": {prompt_tokens, completion_tokens, total_tokens, ...}.
  std::string json() const;
  // The value of "metrics", as vLLM reports it: {"speculative_decoding": {...}}. Empty if no
  // verification of drafts took place.
  std::string metrics_json() const;

  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }

 private:
  int64_t accepted() const;

  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;  // of those
  int64_t draft_tokens_ = 0;
  std::vector<int64_t> accept_lengths_;  // [i]: verifications that accepted i drafts
};

}  // namespace tandem::openai
