// From OpenAI's JSON to the messages of our own API, which then go the way of any request. What our
// API cannot do is refused here, by name; ranges are checked where they are for all
// (server/grpc/request_from_proto.h), and renamed() turns what is said of them into OpenAI's names.
//
// docs/openai.md has all fields. Pure functions; errors are INVALID_ARGUMENT and quote no texts.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/violations.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

enum class Kind { kCompletion, kChat };  // POST /v1/completions, /v1/chat/completions

struct Request {
  Kind kind = Kind::kCompletion;
  v1::GenerateRequest message;
  bool stream = false;
  bool include_usage = false;             // of a stream
  std::string max_tokens = "max_tokens";  // by which of its names it was given
};

absl::StatusOr<Request> request_from(Kind kind, const std::string& body);

// `status`, of a request of this kind, with OpenAI's names of the fields.
absl::Status renamed(const absl::Status& status, Kind kind, absl::string_view max_tokens);

// Parts of it:
// `messages` and what templates print, of a chat.
class Fields;
void chat_from(Fields* in, v1::Chat* out, Violations* wrong);
// The member "tandem": fields of GenerateRequest that OpenAI has no name for.
void extension_from(absl::string_view object, v1::GenerateRequest* out, Violations* wrong);

}  // namespace tandem::openai
