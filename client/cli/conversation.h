// What `tandem chat` knows without a terminal: what a line asks for, and the messages so far.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

struct ChatLine {
  enum class Wish { kNothing, kSay, kExit, kHelp, kReset, kSystem, kMethod, kRetry, kUnknown };
  Wish wish = Wish::kNothing;
  std::string text;  // what is said, or what follows the command
};
// A line that begins with "/" is a command; with "//" it is said, less one of them.
ChatLine parse_chat_line(absl::string_view line);

// The commands, a line each.
std::string chat_help();

class Conversation {
 public:
  explicit Conversation(std::string system = "") : system_(std::move(system)) {}

  void say(std::string text);
  // The model's answer to what was said last, also one that was broken off.
  void answered(std::string text);
  // Nothing came: what was said last is forgotten, so that the next try does not follow on it.
  void failed();
  // Forgets the last answer, so that what was said before it can be asked again. False: there is
  // none.
  bool take_back();
  void reset() { turns_.clear(); }
  void set_system(std::string text) { system_ = std::move(text); }

  // For the template, with the system's message first where there is one.
  v1::Chat chat() const;

 private:
  struct Turn {
    bool users = false;
    std::string text;
  };
  std::string system_;
  std::vector<Turn> turns_;
};

}  // namespace tandem::cli
