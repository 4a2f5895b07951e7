// A completion asked for through the OpenAI door: what StreamOut decides, done with HTTP. An answer
// that is not streamed is a stream of one item.
//
// Life: begins with a whole request, on the HTTP server's thread; the request is read on the door's
// worker, where a long one holds up no stream. Owned by itself until its answer is on its way, and
// by the sink until its last event.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/async/worker.h"
#include "server/edge/http_server.h"
#include "server/edge/stream_out.h"
#include "server/grpc/call_record.h"
#include "server/grpc/complete_response.h"
#include "server/openai/answer.h"
#include "server/openai/request.h"

namespace tandem {

// What goes to the client in one piece: part of a choice, or an event or answer as it is.
struct OpenAiItem {
  int choice = -1;
  int64_t count = 0;  // of tokens
  std::string text;
  std::vector<v1::Token> listed;  // where their log-probabilities are wanted
  int64_t token_bytes = 0;

  int index() const { return choice; }
  int64_t tokens() const { return count; }
  int64_t bytes() const { return kOverhead + static_cast<int64_t>(text.size()) + token_bytes; }
  void append(const OpenAiItem& later);

  static constexpr int64_t kOverhead = 256;  // of an event, about
};

class OpenAiCall final : public std::enable_shared_from_this<OpenAiCall>,
                         private StreamPort<OpenAiItem>,
                         private HttpExchange::Listener {
 public:
  // On the server's thread. Everything outlives the call.
  static void start(openai::Kind kind, ServerState& state, HttpServer& server, Worker& worker,
                    std::shared_ptr<HttpExchange> exchange);

 private:
  class EngineSink;
  struct Turn final : HttpServer::Work {
    explicit Turn(OpenAiCall* c) : call(c) {}
    void work() override { call->out_.work(); }
    OpenAiCall* const call;
  };

  OpenAiCall(openai::Kind kind, ServerState& state, HttpServer& server,
             std::shared_ptr<HttpExchange> exchange);

  // The worker's thread.
  void parse();
  absl::Status submit();

  // From the engine.
  void on_started(const Started& event);
  void on_chunk(Chunk event);
  void gather(const OpenAiItem& item);
  void on_finished(const Finished& event);
  void on_failed(const absl::Status& status);
  void end(const absl::Status& status, std::optional<OpenAiItem> last = std::nullopt);

  // The server's thread, as what follows.
  void written(bool ok) override;
  void closed() override;
  std::string render(const OpenAiItem& item);
  void begin_stream();

  // What the stream wants done.
  void post() override { server_.post(&turn_); }
  void pause() override { engine_->pause(id_); }
  void resume() override { engine_->resume(id_); }
  void cancel() override { engine_->cancel(id_); }
  void write(OpenAiItem item) override;
  void write_last(OpenAiItem item) override;
  void finish(const absl::Status& status) override;
  void release() override;

  const openai::Kind kind_;
  HttpServer& server_;
  const std::shared_ptr<HttpExchange> exchange_;
  const int64_t created_;
  std::shared_ptr<OpenAiCall> self_;  // until let go of
  Turn turn_{this};
  StreamOut<OpenAiItem> out_;
  bool entered_ = false;    // in the count of calls
  bool finishing_ = false;  // the server's thread: the answer's end is on its way
  bool over_ = false;       // likewise: and `out_` knows

  CallRecord record_;
  // Set before the sink starts:
  bool stream_ = false;
  std::string max_tokens_ = "max_tokens";  // as the client named it
  TokenBytes token_bytes_;                 // where log-probabilities are wanted
  openai::Head head_;
  std::optional<openai::Events> events_;
  std::optional<openai::Answer> answer_;  // where it is no stream
  bool gave_up_ = false;                  // the answer is too long, and the engine is still at it
  int choices_ = 1;
  Engine* engine_ = nullptr;
  RequestId id_ = 0;  // set before out_.attach()
};

}  // namespace tandem
