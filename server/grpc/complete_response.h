// A request's events as one answer.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/host/request.h"
#include "server/grpc/response_to_proto.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// RESOURCE_EXHAUSTED where an answer of so many bytes is more than one may have.
inline absl::Status check_answer_size(size_t bytes, int most) {
  if (bytes <= static_cast<size_t>(most)) return absl::OkStatus();
  return with_reason(
      absl::ResourceExhaustedError(absl::StrCat(
          "answer: more than ", most, " bytes; allowed: at most that (server.max_send_bytes); ",
          "ask for a stream, for fewer choices or for less about each token")),
      "ANSWER_TOO_LARGE");
}

class CompleteResponseBuilder {
 public:
  CompleteResponseBuilder() = default;
  // Without `with_tokens` there are only texts. `token_bytes` as for token_to_proto.
  CompleteResponseBuilder(bool with_tokens, TokenBytes token_bytes)
      : with_tokens_(with_tokens), token_bytes_(std::move(token_bytes)) {}

  void add(const Started& event) { *answer_.mutable_started() = started_to_proto(event); }
  void add(const Chunk& event) {
    v1::Choice* const choice = choice_at(event.index);
    choice->mutable_text()->append(event.text);
    bytes_ += event.text.size();
    if (!with_tokens_) return;
    for (const TokenInfo& token : event.tokens) {
      v1::Token* const added = choice->add_tokens();
      token_to_proto(token, token_bytes_, added);
      bytes_ += added->ByteSizeLong();
    }
  }
  void add(v1::Finished event) {
    v1::Choice* const choice = choice_at(event.index());
    *choice->mutable_finished() = std::move(event);
  }

  const v1::CompleteResponse& answer() const { return answer_; }
  size_t bytes() const { return bytes_; }  // of it, but for a few of each message in it

 private:
  v1::Choice* choice_at(int index) {
    while (answer_.choices_size() <= index) {
      answer_.add_choices()->set_index(answer_.choices_size() - 1);
    }
    return answer_.mutable_choices(index);
  }

  bool with_tokens_ = false;
  TokenBytes token_bytes_;
  v1::CompleteResponse answer_;
  size_t bytes_ = 0;
};

}  // namespace tandem
