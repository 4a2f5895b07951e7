#include "client/cli/conversation.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

struct Known {
  const char* name;
  const char* argument;
  const char* help;
  ChatLine::Action action;
};
constexpr Known kKnown[] = {
    {"exit", "", "end the program (also Ctrl-D)", ChatLine::Action::kExit},
    {"quit", "", "", ChatLine::Action::kExit},
    {"help", "", "list the commands", ChatLine::Action::kHelp},
    {"reset", "", "forget the conversation", ChatLine::Action::kReset},
    {"retry", "", "answer the last question again", ChatLine::Action::kRetry},
    {"system", "TEXT", "set the system message; without TEXT: remove it",
     ChatLine::Action::kSystem},
    {"method", "NAME", "use another decoding method", ChatLine::Action::kMethod},
};

}  // namespace

ChatLine parse_chat_line(absl::string_view line) {
  const absl::string_view text = absl::StripAsciiWhitespace(line);
  if (text.empty()) return {};
  if (text[0] != '/') return {ChatLine::Action::kAsk, std::string(text)};
  if (text.size() > 1 && text[1] == '/')
    return {ChatLine::Action::kAsk, std::string(text.substr(1))};
  const size_t space = text.find(' ');
  const absl::string_view name = text.substr(1, space == text.npos ? text.npos : space - 1);
  for (const Known& known : kKnown) {
    if (name != known.name) continue;
    const absl::string_view rest = space == text.npos ? "" : text.substr(space);
    return {known.action, std::string(absl::StripAsciiWhitespace(rest))};
  }
  return {ChatLine::Action::kUnknown, std::string(name)};
}

std::string chat_help() {
  std::string out;
  for (const Known& known : kKnown) {
    if (*known.help == '\0') continue;
    const std::string left =
        absl::StrCat("/", known.name, *known.argument ? " " : "", known.argument);
    absl::StrAppend(&out, "  ", left, std::string(16 - left.size(), ' '), known.help, "\n");
  }
  absl::StrAppend(
      &out, "A line that ends with \\ continues on the next line. Ctrl-C stops the answer.\n");
  return out;
}

void Conversation::add_question(std::string text) { turns_.push_back({true, std::move(text)}); }

void Conversation::add_answer(std::string text) { turns_.push_back({false, std::move(text)}); }

void Conversation::remove_question() {
  if (!turns_.empty() && turns_.back().is_question) turns_.pop_back();
}

bool Conversation::remove_answer() {
  if (turns_.empty() || turns_.back().is_question) return false;
  turns_.pop_back();
  return true;
}

v1::Chat Conversation::chat() const {
  v1::Chat out;
  const auto add = [&out](const char* role, const std::string& text) {
    v1::ChatMessage* const message = out.add_messages();
    message->set_role(role);
    message->set_content(text);
  };
  if (!system_.empty()) add("system", system_);
  for (const Turn& turn : turns_) add(turn.is_question ? "user" : "assistant", turn.text);
  return out;
}

}  // namespace tandem::cli
