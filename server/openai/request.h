// Converts OpenAI's JSON to tandem.v1 messages, which are then handled like any request. Rejects
// unsupported fields by name. Ranges are checked in server/grpc/request_from_proto.h; renamed()
// translates the names in those errors to OpenAI's.
//
// docs/http_api.md lists all fields. Pure functions; errors are INVALID_ARGUMENT and quote no
// texts.
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
  bool include_usage = false;             // only for streams
  std::string max_tokens = "max_tokens";  // the name that the client used
};

absl::StatusOr<Request> request_from(Kind kind, const std::string& body);

// `status` with OpenAI's names of the fields, for a request of this kind.
absl::Status renamed(const absl::Status& status, Kind kind, absl::string_view max_tokens);

// The parts of request_from().
// `messages` and the other input of the chat template.
class Fields;
void chat_from(Fields* in, v1::Chat* out, Violations* wrong);
// The member "tandem": fields of GenerateRequest without an OpenAI equivalent.
void extension_from(absl::string_view object, v1::GenerateRequest* out, Violations* wrong);

}  // namespace tandem::openai
