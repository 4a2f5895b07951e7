// `tandem chat`: a conversation in the terminal.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/answer.h"
#include "client/cli/command.h"
#include "client/cli/conversation.h"
#include "client/cli/interrupts.h"
#include "client/cli/provenance.h"
#include "client/cli/request_flags.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kChatIntro[] =
    "tandem chat: a conversation in the terminal. It remembers what was said.\n\n"
    "  tandem chat --system 'You are brief.' --temperature 0.7\n"
    "  tandem chat --model coder --method bild\n\n"
    "Ctrl-C ends the answer, Ctrl-D the program. /help lists the commands.\n"
    "Exit status: 0 fine, 1 the last request failed, 2 wrong usage.\n";

constexpr int kInterrupted = 130;  // as shells say of SIGINT

// The program from its first question to its last.
class Chatter {
 public:
  // `request`: all but the prompt.
  Chatter(Client* client, v1::GenerateRequest request, std::string system, bool colours)
      : client_(client),
        request_(std::move(request)),
        conversation_(std::move(system)),
        colours_(colours),
        asks_(isatty(STDIN_FILENO) == 1) {
    if (colours_) request_.set_return_token_texts(true);
  }

  int run() {
    if (asks_) {
      std::fprintf(stderr, "%s  (/help: what else there is)\n", request_.model().c_str());
    }
    std::string line;
    while (read(&line)) {
      const ChatLine asked = parse_chat_line(line);
      if (asked.wish == ChatLine::Wish::kExit) return status_;
      do_as(asked);
    }
    if (asks_) write_out("\n");
    return status_;
  }

  // Ctrl-C, on another thread.
  void interrupt() {
    if (answering_.load()) {
      client_->cancel();
    } else {
      write_out("\n(Ctrl-D or /exit ends)\n");
      prompt();
    }
  }

 private:
  void prompt() const {
    if (asks_) write_out(colours_ ? "\x1b[1m> \x1b[0m" : "> ");
  }

  bool read(std::string* line) const {
    prompt();
    if (!std::getline(std::cin, *line)) return false;
    std::string next;
    while (!line->empty() && line->back() == '\\' && std::getline(std::cin, next)) {
      line->back() = '\n';
      *line += next;
    }
    return true;
  }

  void do_as(const ChatLine& asked) {
    switch (asked.wish) {
      case ChatLine::Wish::kSay:
        conversation_.say(asked.text);
        return answer();
      case ChatLine::Wish::kRetry:
        if (conversation_.take_back()) return answer();
        return tell("nothing was answered yet");
      case ChatLine::Wish::kHelp:
        std::fputs(chat_help().c_str(), stderr);
        return;
      case ChatLine::Wish::kReset:
        conversation_.reset();
        return tell("forgotten");
      case ChatLine::Wish::kSystem:
        conversation_.set_system(asked.text);
        return;
      case ChatLine::Wish::kMethod:
        if (const auto set = choose_method(asked.text, &request_); !set.ok()) {
          tell(std::string(set.message()));
        }
        return;
      case ChatLine::Wish::kUnknown:
        return tell(absl::StrCat("no command /", asked.text, "; /help lists them"));
      case ChatLine::Wish::kNothing:
      case ChatLine::Wish::kExit:
        return;
    }
  }

  void tell(const std::string& line) const {
    std::fprintf(stderr, colours_ ? "\x1b[2m%s\x1b[0m\n" : "%s\n", line.c_str());
  }

  void answer() {
    *request_.mutable_chat() = conversation_.chat();
    Answer answer;
    Painter painter;
    answering_.store(true);
    const absl::Status ended = client_->generate(request_, [&](const v1::GenerateResponse& event) {
      answer.add(event);
      if (event.has_chunk()) {
        write_out(colours_ ? painter.paint(event.chunk()) : event.chunk().text());
      }
      return true;
    });
    answering_.store(false);
    if (answer.has_text()) write_out("\n");
    const bool broken_off = absl::IsCancelled(ended);
    if (ended.ok() || answer.has_text()) {
      conversation_.answered(answer.first().text);
    } else {
      conversation_.failed();
    }
    status_ = ended.ok() || broken_off ? kFine : request_failed(ended);
    if (ended.ok()) tell(answer.footer());
    if (broken_off) tell("[broken off]");
  }

  Client* const client_;
  v1::GenerateRequest request_;
  Conversation conversation_;
  const bool colours_;
  const bool asks_;  // somebody sits there
  std::atomic<bool> answering_{false};
  int status_ = kFine;
};

}  // namespace

int chat_command(const Args& args) {
  RequestFlags request_flags;
  Connection connection;
  std::optional<std::string> color;
  Flags flags;
  request_flags.add_to(&flags, /*prompts=*/false);
  flags.section("Printing");
  flags.text("color", "WHEN", "tokens in colours by what proposed them: always, never, auto",
             &color);
  connection.add_to(&flags);
  const auto rest = flags.parse(args);
  if (!rest.ok()) return wrong_usage("chat", rest.status());
  if (connection.help) return print_help(kChatIntro, flags);
  if (!rest->empty()) {
    return wrong_usage("chat", out_of_range("argument", quote_value(rest->front()), "flags only"));
  }
  const auto colours = wants_colours(color);
  if (!colours.ok()) return wrong_usage("chat", colours.status());
  auto request = request_flags.request_without_prompt();
  if (!request.ok()) return wrong_usage("chat", request.status());

  std::mutex mutex;
  Chatter* running = nullptr;  // guarded by it
  const Interrupts interrupts([&mutex, &running] {
    const std::lock_guard lock(mutex);
    if (running == nullptr) _exit(kInterrupted);  // it only connects yet
    running->interrupt();
  });
  const auto client = connection.connect();
  if (!client.ok()) return wrong_usage("chat", client.status());
  if (const int end = name_model(**client, "chat", request->mutable_model())) return end;
  Chatter one(client->get(), *std::move(request), request_flags.system.value_or(""), *colours);
  const auto runs = [&mutex, &running](Chatter* what) {
    const std::lock_guard lock(mutex);
    running = what;
  };
  runs(&one);
  const int status = one.run();
  runs(nullptr);
  return status;
}

}  // namespace tandem::cli
