// `tandem chat`: a conversation in the terminal.
#include "client/cli/chat.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/answer.h"
#include "client/cli/command.h"
#include "client/cli/conversation.h"
#include "client/cli/interrupts.h"
#include "client/cli/provenance.h"
#include "client/cli/request_flags.h"
#include "engine/base/mutex.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kChatIntro[] =
    "tandem chat: a conversation with a model, in the terminal.\n\n"
    "Usage: tandem chat [flags]\n\n"
    "  tandem chat --system 'You are brief.' --temperature 0.7\n"
    "  tandem chat --model coder --method bild\n\n"
    "Ctrl-C stops the answer, Ctrl-D ends the program, /help lists the commands.\n\n"
    "Exit status: 0 success, 1 the last request failed, 2 wrong usage.\n";

constexpr int kInterrupted = 130;  // the exit status that shells give SIGINT

// A conversation, from the first line of input to the last.
class ChatSession {
 public:
  // `request` has no prompt yet.
  ChatSession(Client* client, v1::GenerateRequest request, std::string system, bool colours)
      : client_(client),
        request_(std::move(request)),
        conversation_(std::move(system)),
        colours_(colours),
        interactive_(isatty(STDIN_FILENO) == 1) {
    if (colours_) {
      request_.set_return_token_texts(true);
      request_.set_raw_text(true);  // colors follow the tokens, which include those of reasoning
    }
  }

  int run() {
    if (interactive_) {
      std::fprintf(stderr, "%s  (/help lists the commands)\n", request_.model().c_str());
    }
    std::string line;
    while (read(&line)) {
      const ChatLine input = parse_chat_line(line);
      if (input.action == ChatLine::Action::kExit) return status_;
      execute(input);
    }
    if (interactive_) write_out("\n");
    return status_;
  }

  // Ctrl-C. Called on another thread.
  void interrupt() {
    if (answering_.load()) {
      client_->cancel();
    } else {
      write_out("\n(Ctrl-D or /exit ends the program)\n");
      prompt();
    }
  }

 private:
  void prompt() const {
    if (interactive_) write_out(colours_ ? "\x1b[1m> \x1b[0m" : "> ");
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

  void execute(const ChatLine& input) {
    switch (input.action) {
      case ChatLine::Action::kAsk:
        conversation_.add_question(input.text);
        return answer();
      case ChatLine::Action::kRetry:
        if (conversation_.remove_answer()) return answer();
        return print_note("there is no answer yet");
      case ChatLine::Action::kHelp:
        std::fputs(chat_help().c_str(), stderr);
        return;
      case ChatLine::Action::kReset:
        conversation_.reset();
        return print_note("conversation cleared");
      case ChatLine::Action::kSystem:
        conversation_.set_system(input.text);
        return;
      case ChatLine::Action::kMethod:
        if (const auto set = choose_method(input.text, &request_); !set.ok()) {
          print_note(std::string(set.message()));
        }
        return;
      case ChatLine::Action::kUnknown:
        return print_note(absl::StrCat("no command /", input.text, "; /help lists them"));
      case ChatLine::Action::kNothing:
      case ChatLine::Action::kExit:
        return;
    }
  }

  void print_note(const std::string& line) const {
    std::fprintf(stderr, colours_ ? "\x1b[2m%s\x1b[0m\n" : "%s\n", line.c_str());
  }

  void answer() {
    *request_.mutable_chat() = conversation_.chat();
    Answer answer;
    Painter painter;
    SidePrinter side;
    answering_.store(true);
    const absl::Status ended = client_->generate(request_, [&](const v1::GenerateResponse& event) {
      answer.add(event);
      if (event.has_chunk()) {
        side.print(event.chunk());
        write_out(colours_ ? painter.paint(event.chunk()) : event.chunk().text());
      }
      return true;
    });
    answering_.store(false);
    side.end();
    if (answer.has_text()) write_out("\n");
    const bool interrupted = absl::IsCancelled(ended);
    if (ended.ok() || answer.has_text()) {
      conversation_.add_answer(answer.first().text);
    } else {
      conversation_.remove_question();
    }
    status_ = ended.ok() || interrupted ? kSuccess : request_failed(ended);
    if (ended.ok()) print_note(answer.footer());
    if (interrupted) print_note("[interrupted]");
  }

  Client* const client_;
  v1::GenerateRequest request_;
  Conversation conversation_;
  const bool colours_;
  const bool interactive_;  // input is a terminal
  std::atomic<bool> answering_{false};
  int status_ = kSuccess;
};

absl::StatusOr<int> run_chat(CommandLine& line) {
  RequestFlags request_flags;
  add_chat_flags(&line, &request_flags);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse());
  if (!go) return kSuccess;
  return chat(line, request_flags, [] { return absl::OkStatus(); });
}

}  // namespace

void add_chat_flags(CommandLine* line, RequestFlags* request_flags) {
  request_flags->add_to(&line->flags, /*prompts=*/false);
  line->flags.section("Output");
  line->add_color(
      "color tokens by the model that proposed them: auto, always, never (default auto)");
}

absl::StatusOr<int> chat(CommandLine& line, const RequestFlags& request_flags,
                         const std::function<absl::Status()>& before_connecting) {
  TANDEM_ASSIGN_OR_RETURN(v1::GenerateRequest request, request_flags.request_without_prompt());
  struct {
    Mutex mutex;
    ChatSession* session ABSL_GUARDED_BY(mutex) = nullptr;
  } running;
  const Interrupts interrupts([&running] {
    const MutexLock lock(&running.mutex);
    if (running.session == nullptr) _exit(kInterrupted);  // still connecting
    running.session->interrupt();
  });
  TANDEM_RETURN_IF_ERROR(before_connecting());
  TANDEM_RETURN_IF_ERROR(line.connect(request.mutable_model()));
  ChatSession session(&line.client(), std::move(request), request_flags.system.value_or(""),
                      line.colours());
  const auto set_session = [&running](ChatSession* to) {
    const MutexLock lock(&running.mutex);
    running.session = to;
  };
  set_session(&session);
  const int status = session.run();
  set_session(nullptr);
  return status;
}

Command chat_command() { return {"chat", "talk to a model in the terminal", kChatIntro, run_chat}; }

}  // namespace tandem::cli
