// Converts OpenAI's JSON to tandem.v1 messages, which are then handled like any request. Rejects
// unsupported fields by name. Ranges are checked in server/grpc/request_from_proto.h; renamed()
// translates the names in those errors to OpenAI's.
//
// server/openai/field_table.h lists all fields. Pure functions; errors are INVALID_ARGUMENT and
// quote no texts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/violations.h"
#include "server/openai/field_table.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

enum class Kind { kCompletion, kChat };  // POST /v1/completions, /v1/chat/completions

struct Request {
  Kind kind = Kind::kCompletion;
  v1::GenerateRequest message;
  // Completions with a list of prompts: the prompts after that of `message`; only the prompt is
  // set.
  std::vector<v1::GenerateRequest> more_prompts;
  bool fill_context = false;  // without a limit of tokens: the answer may fill the context
  bool echo = false;          // the text begins with the prompt
  bool score_only = false;    // with `echo`: generates nothing
  bool logprobs = false;      // in the answer
  int best = 0;               // return the best of message.n() choices, this many; 0: all
  std::string suffix;         // text after the completion
  bool stream = false;
  bool include_usage = false;  // only for streams
  bool usage_so_far = false;   // in each event
  FieldNames names;            // that the client used
};

absl::StatusOr<Request> request_from(Kind kind, const std::string& body);

// `status` with OpenAI's names of the fields, for a request of this kind.
absl::Status renamed(const absl::Status& status, Kind kind, const FieldNames& names);

// The parts of request_from().
// `messages` and the other input of the chat template.
class Fields;
void chat_from(Fields* in, v1::Chat* out, Violations* wrong);
// The member "tandem": fields of GenerateRequest without an OpenAI equivalent.
void extension_from(absl::string_view object, v1::GenerateRequest* out, Violations* wrong);

}  // namespace tandem::openai
