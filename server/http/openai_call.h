// A completion of the OpenAI-compatible API: performs the decisions of StreamOut over HTTP. A
// response that is not streamed is a stream of one item.
//
// Starts with a complete request on the HTTP server's thread. The request is parsed on another
// thread, in turns with those of other clients; if its client leaves before its turn, it is dropped
// at once. The object owns itself until its response is sent; the sink shares it until the
// request's last event.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/memory_account.h"
#include "server/edge/client_turns.h"
#include "server/edge/http_server.h"
#include "server/edge/stream_out.h"
#include "server/grpc/call_record.h"
#include "server/grpc/complete_response.h"
#include "server/http/completion_batch.h"
#include "server/openai/answer.h"
#include "server/openai/request.h"
#include "server/openai/translation.h"

namespace tandem {

// One unit of output: part of a choice, or an event or response in its final form.
struct OpenAiItem {
  int choice = -1;
  int64_t count = 0;  // tokens
  std::string text;
  openai::AnswerDelta more;       // of chats
  std::vector<v1::Token> listed;  // if log-probabilities are requested
  int64_t token_bytes = 0;

  int index() const { return choice; }
  int64_t tokens() const { return count; }
  int64_t bytes() const {
    return kOverhead + static_cast<int64_t>(text.size() + more.bytes()) + token_bytes;
  }
  void append(const OpenAiItem& later);

  static constexpr int64_t kOverhead = 256;  // approximate, per event
};

class OpenAiCall final : public std::enable_shared_from_this<OpenAiCall>,
                         private StreamPort<OpenAiItem>,
                         private HttpExchange::Listener {
 public:
  // On the HTTP server's thread. All arguments outlive the call.
  // `name`: of the call, in the log. `translation`: of another API to a chat completion, or null.
  static void start(const char* name, openai::Kind kind, ServerState& state, HttpServer& server,
                    ClientTurns& turns, std::shared_ptr<HttpExchange> exchange,
                    std::unique_ptr<openai::Translation> translation = nullptr);

 private:
  class EngineSink;
  struct Output final : HttpServer::Work {
    explicit Output(OpenAiCall* c) : call(c) {}
    void work() override { call->out_.work(); }
    OpenAiCall* const call;
  };

  OpenAiCall(openai::Kind kind, ServerState& state, HttpServer& server, ClientTurns& turns,
             std::shared_ptr<HttpExchange> exchange);

  // On a thread of `turns_`. `turn`: not OK if the request is dropped before its turn.
  void parse(const absl::Status& turn);
  absl::Status submit();
  absl::StatusOr<openai::Request> read_request(const std::string& body);
  absl::Status renamed(const absl::Status& status) const;
  absl::Status charge_answer();               // begins the charge
  absl::Status charge_answer(int64_t bytes);  // on the engine's thread

  // Events of the engine:
  void on_started(int prompt, const Started& event);
  void on_echo(int choice, std::string text, const std::vector<TokenInfo>& tokens);
  void on_chunk(Chunk event);
  void list_tokens(const std::vector<TokenInfo>& tokens, OpenAiItem* item) const;
  void check_answer();
  void on_finished(const Finished& event);
  void on_failed(const absl::Status& status);
  void end(const absl::Status& status, std::optional<OpenAiItem> last = std::nullopt);

  // On the HTTP server's thread, as all below:
  void written(bool ok) override;
  void closed() override;
  std::string render(const OpenAiItem& item);
  void begin_stream();

  // StreamPort:
  void post() override { server_.post(&output_); }
  void pause() override { batch_->pause(); }
  void resume() override { batch_->resume(); }
  void cancel() override { batch_->cancel(); }
  void hold(int64_t bytes) override { answer_charge_.resize(bytes); }
  void write(OpenAiItem item) override;
  void write_last(OpenAiItem item) override;
  void finish(const absl::Status& status) override;
  void release() override;

  const openai::Kind kind_;
  std::unique_ptr<openai::Translation> translation_;  // null: none
  HttpServer& server_;
  ClientTurns& turns_;
  uint64_t turn_number_ = 0;        // in `turns_`
  std::atomic<bool> gone_ = false;  // the client has left
  const std::shared_ptr<HttpExchange> exchange_;
  const int64_t created_;
  std::shared_ptr<OpenAiCall> self_;  // until released
  Output output_{this};
  StreamOut<OpenAiItem> out_;
  bool entered_ = false;    // counted in state.calls
  bool finishing_ = false;  // on the server's thread: the end of the response is being sent
  bool done_ = false;       // the same: and `out_` has been notified

  CallRecord record_;
  // Set before the sink starts:
  bool stream_ = false;
  openai::FieldNames names_;  // that the client used
  TokenBytes token_bytes_;    // if log-probabilities are requested
  openai::Head head_;
  std::optional<openai::Events> events_;
  std::optional<openai::Answer> answer_;    // unless streamed
  MemoryAccount::Charge answer_charge_;     // until it is written
  int64_t prompt_tokens_ = 0;               // of prompts whose first choice has finished
  bool too_long_ = false;                   // the response does not fit, and the request still runs
  std::shared_ptr<CompletionBatch> batch_;  // set before out_.attach()
};

}  // namespace tandem
