// Calls with one answer: POST /tokenize, /detokenize, /v1/messages/count_tokens, /v1/embeddings,
// /v1/rerank, /v1/load_lora_adapter and /v1/unload_lora_adapter. The body is parsed in turns with
// those of other clients; the engine makes the result. A call whose client leaves is cancelled,
// except for the last two.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/host/engine.h"
#include "server/edge/client_turns.h"
#include "server/edge/http_server.h"
#include "server/grpc/call_record.h"
#include "server/server_state.h"

namespace tandem {

class TokenCall final : public std::enable_shared_from_this<TokenCall>,
                        private HttpExchange::Listener {
 public:
  enum class Kind {
    kTokenize,
    kDetokenize,
    kCountTokens,
    kEmbeddings,
    kRerank,
    kLoadAdapter,
    kUnloadAdapter
  };

  // On the HTTP server's thread. All arguments outlive the call.
  static void start(Kind kind, ServerState& state, HttpServer& server, ClientTurns& turns,
                    std::shared_ptr<HttpExchange> exchange);

 private:
  TokenCall(Kind kind, ServerState& state, HttpServer& server, ClientTurns& turns,
            std::shared_ptr<HttpExchange> exchange);

  // On a thread of `turns_`:
  void parse(const absl::Status& turn);
  absl::Status submit();
  absl::Status find_model(std::string* name);
  absl::Status tokenize(v1::TokenizeRequest message);
  absl::Status detokenize(v1::DetokenizeRequest message);
  absl::Status embed();
  absl::Status rerank();
  absl::Status load_adapter();
  absl::Status unload_adapter();
  void note(const std::string& model, const std::string& adapter);
  void attach(std::function<void()> cancel);
  void attach(RequestId id);

  void on_tokens(const std::string& model, bool texts,
                 const absl::StatusOr<std::vector<Token>>& tokens);
  void end(const absl::StatusOr<std::string>& answer);

  // On the HTTP server's thread:
  void written(bool /*ok*/) override {}
  void closed() override;

  const Kind kind_;
  HttpServer& server_;
  ClientTurns& turns_;
  const std::shared_ptr<HttpExchange> exchange_;
  CallRecord record_;
  uint64_t turn_number_ = 0;
  bool entered_ = false;  // counted in state.calls
  Engine* engine_ = nullptr;
  std::shared_ptr<TokenCall> self_;  // until the response is posted

  Mutex mutex_;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;             // the client has left
  std::function<void()> cancel_ ABSL_GUARDED_BY(mutex_);  // null: not yet submitted
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
