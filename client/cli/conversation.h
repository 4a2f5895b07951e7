// The parts of `tandem chat` that need no terminal: parsing of lines, and the messages so far.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

struct ChatLine {
  enum class Action { kNothing, kAsk, kExit, kHelp, kReset, kSystem, kMethod, kRetry, kUnknown };
  Action action = Action::kNothing;
  std::string text;  // the question, or the argument of the command
};
// A line that begins with "/" is a command. "//" begins a question with one slash.
ChatLine parse_chat_line(absl::string_view line);

// The commands, one per line.
std::string chat_help();

class Conversation {
 public:
  explicit Conversation(std::string system = "") : system_(std::move(system)) {}

  void add_question(std::string text);
  // The model's answer to the last question, complete or interrupted.
  void add_answer(std::string text);
  // Removes the last question, after a request without an answer.
  void remove_question();
  // Removes the last answer, for a retry. False if there is none.
  bool remove_answer();
  void reset() { turns_.clear(); }
  void set_system(std::string text) { system_ = std::move(text); }

  // All messages; the system message, if any, comes first.
  v1::Chat chat() const;

 private:
  struct Turn {
    bool is_question = false;
    std::string text;
  };
  std::string system_;
  std::vector<Turn> turns_;
};

}  // namespace tandem::cli
