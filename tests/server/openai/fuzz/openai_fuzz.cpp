// JSON from anywhere, as a completion, a chat, a Messages and a Responses request: it becomes a
// message, or is refused as the client's fault, without quoting texts.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "server/openai/json_text.h"
#include "server/openai/request.h"
#include "server/openai/translation.h"
#include "tests/fuzz/fuzz.h"

namespace tandem::openai {
namespace {

using fuzz::check;

constexpr char kCanary[] = "CANARY";

// An error contains no text of a request. It names unknown fields, whatever they contain.
void check_no_text(absl::string_view message) {
  const bool named = absl::StrContains(message, ": unknown field");
  check(named || !absl::StrContains(message, kCanary), "a text in an error", std::string(message));
}

void run(Kind kind, const std::string& body) {
  const auto request = request_from(kind, body);
  if (!request.ok()) {
    fuzz::check_refusal(request.status());
    check_no_text(request.status().message());
    return;
  }
  check(is_json(body), "what is no JSON was taken");
  const v1::GenerateRequest& m = request->message;
  check(m.has_chat() == (kind == Kind::kChat), "a prompt of another kind");
  for (const v1::ChatMessage& message : m.chat().messages()) {
    check(message.extra().empty() || is_json(message.extra()), "extra");
    for (const std::string& call : message.tool_calls()) check(is_json(call), "tool call", call);
  }
  for (const std::string& tool : m.chat().tools()) check(is_json(tool), "tool", tool);
  v1::GenerateRequest again;
  check(again.ParseFromString(m.SerializeAsString()), "strings that are no UTF-8");
}

// Requests of other APIs become JSON of a chat, which is then read as one.
void run(Translation& translation, const std::string& body) {
  const auto chat = translation.request(body);
  if (!chat.ok()) {
    fuzz::check_refusal(chat.status());
    check_no_text(chat.status().message());
    return;
  }
  check(is_json(*chat), "a translation that is no JSON", *chat);
  run(Kind::kChat, *chat);
}

}  // namespace
}  // namespace tandem::openai

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = (google::protobuf::SetLogHandler(nullptr), true);
  (void)quiet;
  using namespace tandem::openai;
  const std::string body = tandem::fuzz::text_of(data, size);
  run(Kind::kCompletion, body);
  run(Kind::kChat, body);
  run(*messages_translation(), body);
  run(*responses_translation(), body);
  return 0;
}
