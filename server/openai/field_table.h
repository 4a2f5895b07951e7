// Every field of the HTTP APIs and its effect, one row each. The table drives the parsing of simple
// fields (apply()) and generates docs/http_fields.md (scripts/http_fields). To add a field, add a
// row and run that script.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/violations.h"
#include "server/openai/fields.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

// The requests that have a field.
enum Api : uint8_t {
  kText = 1,         // POST /v1/completions
  kChat = 2,         // POST /v1/chat/completions
  kResponses = 4,    // POST /v1/responses
  kMessages = 8,     // POST /v1/messages
  kEmbeddings = 16,  // POST /v1/embeddings
  kRerank = 32,      // POST /v1/rerank
  kBoth = kText | kChat,
};

enum class Effect : uint8_t {
  kSet,     // becomes `target`: a field of GenerateRequest, or of a translated chat completion
  kCode,    // read by its own code
  kOnly,    // accepted with the values in `target` ("false", "0|-1"), else refused
  kIgnore,  // accepted, without effect on the answer
  kRefuse,  // refused
};

// The API that defines the name.
enum class Origin : uint8_t { kOpenAi, kVllm, kLlama, kAnthropic, kJina, kCohere, kTandem };

struct FieldRow {
  absl::string_view name;
  uint8_t apis;  // of Api
  Effect effect;
  absl::string_view target;
  Origin origin;
  absl::string_view doc;
};

absl::Span<const FieldRow> field_rows();

// Proto field -> the client's name of it, for errors.
using FieldNames = std::map<std::string, std::string, std::less<>>;

// Applies all rows of the API but those of kCode.
void apply_fields(Api api, Fields* in, v1::GenerateRequest* out, FieldNames* names,
                  Violations* wrong);

// For APIs that are translated to chat completions: calls `member` with the name and the value of
// each member that rows of kSet give a chat completion, and applies the other rows.
void translate_fields(Api api, Fields* in,
                      absl::FunctionRef<void(absl::string_view, absl::string_view)> member,
                      Violations* wrong);

}  // namespace tandem::openai
