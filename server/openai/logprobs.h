// Log-probabilities in OpenAI's JSON: a list of tokens for chats, four lists for completions. The
// text is built token by token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>

#include "server/openai/request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

// A log-probability as a JSON number: -9999 for minus infinity, as OpenAI's.
void append_logprob(float logprob, std::string* out);
// An array of numbers.
void append_bytes(const std::string& bytes, std::string* out);

class Logprobs {
 public:
  explicit Logprobs(Kind kind) : kind_(kind) {}

  // A token with its text and bytes.
  void add(const v1::Token& token);
  size_t bytes() const {
    return std::accumulate(lists_.begin(), lists_.end(), size_t{0},
                           [](size_t sum, const std::string& list) { return sum + list.size(); });
  }

  // The value of "logprobs" for the tokens since clear().
  void append_to(std::string* out) const;
  void clear();  // text offsets continue

 private:
  void add_to_chat(const v1::Token& token);
  void add_to_completion(const v1::Token& token);

  Kind kind_;
  std::array<std::string, 4> lists_;  // chats use one
  int64_t offset_ = 0;                // completions: characters so far
};

}  // namespace tandem::openai
