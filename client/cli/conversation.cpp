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
  ChatLine::Wish wish;
};
constexpr Known kKnown[] = {
    {"exit", "", "ends the program, as Ctrl-D does", ChatLine::Wish::kExit},
    {"quit", "", "", ChatLine::Wish::kExit},
    {"help", "", "this", ChatLine::Wish::kHelp},
    {"reset", "", "forgets what was said", ChatLine::Wish::kReset},
    {"retry", "", "answers again", ChatLine::Wish::kRetry},
    {"system", "TEXT", "another system message; without a text none", ChatLine::Wish::kSystem},
    {"method", "NAME", "decodes by another method from here on", ChatLine::Wish::kMethod},
};

}  // namespace

ChatLine parse_chat_line(absl::string_view line) {
  const absl::string_view text = absl::StripAsciiWhitespace(line);
  if (text.empty()) return {};
  if (text[0] != '/') return {ChatLine::Wish::kSay, std::string(text)};
  if (text.size() > 1 && text[1] == '/') return {ChatLine::Wish::kSay, std::string(text.substr(1))};
  const size_t space = text.find(' ');
  const absl::string_view name = text.substr(1, space == text.npos ? text.npos : space - 1);
  for (const Known& known : kKnown) {
    if (name != known.name) continue;
    const absl::string_view rest = space == text.npos ? "" : text.substr(space);
    return {known.wish, std::string(absl::StripAsciiWhitespace(rest))};
  }
  return {ChatLine::Wish::kUnknown, std::string(name)};
}

std::string chat_help() {
  std::string out;
  for (const Known& known : kKnown) {
    if (*known.help == '\0') continue;
    const std::string left =
        absl::StrCat("/", known.name, *known.argument ? " " : "", known.argument);
    absl::StrAppend(&out, "  ", left, std::string(16 - left.size(), ' '), known.help, "\n");
  }
  absl::StrAppend(&out,
                  "A line that ends with \\ goes on in the next one. Ctrl-C ends the answer.\n");
  return out;
}

void Conversation::say(std::string text) { turns_.push_back({true, std::move(text)}); }

void Conversation::answered(std::string text) { turns_.push_back({false, std::move(text)}); }

void Conversation::failed() {
  if (!turns_.empty() && turns_.back().users) turns_.pop_back();
}

bool Conversation::take_back() {
  if (turns_.empty() || turns_.back().users) return false;
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
  for (const Turn& turn : turns_) add(turn.users ? "user" : "assistant", turn.text);
  return out;
}

}  // namespace tandem::cli
