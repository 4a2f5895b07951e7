// Other HTTP APIs as translations of chat completions: OpenAI's Responses and Anthropic's Messages.
// A request becomes a chat completion's JSON and takes the same path. The answer, whole or as
// events, is translated back. Neither API keeps state on the server.
//
// docs/http_api.md describes them; field_table.h lists their fields. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::openai {

class Translation {
 public:
  virtual ~Translation() = default;

  // The JSON of a chat completion with one choice. Call once, before the other functions. Errors
  // are INVALID_ARGUMENT with the names of this API, and quote no texts.
  virtual absl::StatusOr<std::string> request(const std::string& body) = 0;
  // An error about the chat completion, with the names of this API.
  virtual absl::Status renamed(const absl::Status& status) const = 0;

  // The answer for a complete chat completion.
  virtual std::string answer(const std::string& chat) = 0;
  // The events for those of a chat completion, which arrive in order. The last is [DONE].
  virtual std::string events(absl::string_view chat_events) = 0;

  // The body of an error. `chat`: the error of a chat completion (error.h).
  virtual std::string error(const std::string& chat, int http_status,
                            const std::string& request_id) const = 0;
  // The same as the last event of a stream.
  virtual std::string error_event(const std::string& chat, int http_status,
                                  const std::string& request_id) = 0;
};

std::unique_ptr<Translation> messages_translation();   // POST /v1/messages
std::unique_ptr<Translation> responses_translation();  // POST /v1/responses

// Anthropic's form of an error: {"type": "error", "error": {"type", "message"}, "request_id"}.
std::string messages_error(const std::string& chat, int http_status, const std::string& request_id);

}  // namespace tandem::openai
