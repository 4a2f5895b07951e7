// Builds the response of Complete from the events of a request.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/host/requests/request.h"
#include "server/grpc/response_to_proto.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// RESOURCE_EXHAUSTED if a response of this size exceeds the limit.
inline absl::Status check_response_size(size_t bytes, int most) {
  if (bytes <= static_cast<size_t>(most)) return absl::OkStatus();
  return with_reason(
      absl::ResourceExhaustedError(absl::StrCat(
          "response: more than ", most, " bytes; allowed: at most that (server.max_send_bytes); ",
          "use a stream, fewer choices or fewer token details")),
      "ANSWER_TOO_LARGE");
}

class CompleteResponseBuilder {
 public:
  CompleteResponseBuilder() = default;
  // Without `with_tokens` the response has texts only. `token_bytes`: see token_to_proto().
  CompleteResponseBuilder(bool with_tokens, TokenBytes token_bytes)
      : with_tokens_(with_tokens), token_bytes_(std::move(token_bytes)) {}

  void add(const Started& event) { *response_.mutable_started() = started_to_proto(event); }
  void add(const Chunk& event) {
    v1::Choice* const choice = choice_at(event.index);
    choice->mutable_text()->append(event.text);
    choice->mutable_reasoning()->append(event.reasoning);
    bytes_ += event.text.size() + event.reasoning.size();
    for (const CallPart& part : event.tool_calls) add_call(part, choice);
    if (!with_tokens_) return;
    for (const TokenInfo& token : event.tokens) {
      v1::Token* const added = choice->add_tokens();
      token_to_proto(token, token_bytes_, added);
      bytes_ += added->ByteSizeLong();
    }
  }
  void add(v1::Finished event) {
    if (event.has_trace()) bytes_ += event.trace().ByteSizeLong();
    v1::Choice* const choice = choice_at(event.index());
    *choice->mutable_finished() = std::move(event);
  }

  const v1::CompleteResponse& response() const { return response_; }
  size_t bytes() const { return bytes_; }  // approximate size

 private:
  // Broken calls are removed: their text is content.
  void add_call(const CallPart& part, v1::Choice* choice) {
    if (!part.name.empty()) {
      v1::ToolCall* const call = choice->add_tool_calls();
      *call = call_to_proto(part);
      call->set_index(choice->tool_calls_size() - 1);
    } else if (!part.arguments.empty()) {
      choice->mutable_tool_calls()->rbegin()->mutable_arguments()->append(part.arguments);
    }
    bytes_ += part.id.size() + part.name.size() + part.arguments.size();
    if (part.broken) choice->mutable_tool_calls()->RemoveLast();
  }

  v1::Choice* choice_at(int index) {
    while (response_.choices_size() <= index) {
      response_.add_choices()->set_index(response_.choices_size() - 1);
    }
    return response_.mutable_choices(index);
  }

  bool with_tokens_ = false;
  TokenBytes token_bytes_;
  v1::CompleteResponse response_;
  size_t bytes_ = 0;
};

}  // namespace tandem
