#include "server/http/token_call.h"

#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "server/adapter_commands.h"
#include "server/edge/peer.h"
#include "server/grpc/complete_response.h"
#include "server/grpc/embed.h"
#include "server/grpc/request_from_proto.h"
#include "server/grpc/rerank.h"
#include "server/http/openai_api.h"
#include "server/http/posted_response.h"
#include "server/openai/adapters.h"
#include "server/openai/embeddings.h"
#include "server/openai/json_text.h"
#include "server/openai/tokens.h"
#include "server/openai/translation.h"

namespace tandem {
namespace {

constexpr size_t kTurnBytes = 4 << 10;  // the cost of a request, in addition to its body
constexpr char kInput[] = "input";      // of embeddings
// Memory of embeddings, for each byte of their floats: the message, and the JSON twice.
constexpr int64_t kEmbeddingFactor = 8;

const char* name_of(TokenCall::Kind kind) {
  switch (kind) {
    case TokenCall::Kind::kTokenize:
      return "openai/tokenize";
    case TokenCall::Kind::kDetokenize:
      return "openai/detokenize";
    case TokenCall::Kind::kEmbeddings:
      return "openai/embeddings";
    case TokenCall::Kind::kRerank:
      return "openai/rerank";
    case TokenCall::Kind::kLoadAdapter:
      return "openai/load_lora_adapter";
    case TokenCall::Kind::kUnloadAdapter:
      return "openai/unload_lora_adapter";
    case TokenCall::Kind::kCountTokens:
      break;
  }
  return "openai/messages/count_tokens";
}

}  // namespace

TokenCall::TokenCall(Kind kind, ServerState& state, HttpServer& server, ClientTurns& turns,
                     std::shared_ptr<HttpExchange> exchange)
    : kind_(kind), server_(server), turns_(turns), exchange_(std::move(exchange)), record_(state) {}

void TokenCall::start(Kind kind, ServerState& state, HttpServer& server, ClientTurns& turns,
                      std::shared_ptr<HttpExchange> exchange) {
  const std::shared_ptr<TokenCall> call(
      new TokenCall(kind, state, server, turns, std::move(exchange)));
  call->self_ = call;
  const HttpExchange& from = *call->exchange_;
  call->record_.info = begin_call(name_of(kind), state, from.message, from.peer);
  call->exchange_->listen(call.get());
  const absl::Status entered = state.calls.enter(from.peer.address);
  call->entered_ = entered.ok();
  if (!entered.ok()) return call->end(entered);
  const auto cost = static_cast<int64_t>(from.message.body.size() + kTurnBytes);
  call->turn_number_ =
      turns.enter(from.client, cost, [call](const absl::Status& turn) { call->parse(turn); });
}

void TokenCall::parse(const absl::Status& turn) {
  const absl::Status status = turn.ok() ? submit() : turn;
  exchange_->drop_body();
  if (!status.ok()) end(status);
}

absl::Status TokenCall::submit() {
  TANDEM_RETURN_IF_ERROR(record_.info.authenticated);
  const std::string& body = exchange_->message.body;
  TANDEM_RETURN_IF_ERROR(
      exchange_->charge.try_resize(exchange_->charge.bytes() + openai::parse_memory(body)));
  if (kind_ == Kind::kEmbeddings) return embed();
  if (kind_ == Kind::kRerank) return rerank();
  if (kind_ == Kind::kLoadAdapter) return openai::with_lora_names(load_adapter());
  if (kind_ == Kind::kUnloadAdapter) return openai::with_lora_names(unload_adapter());
  if (kind_ == Kind::kDetokenize) {
    TANDEM_ASSIGN_OR_RETURN(v1::DetokenizeRequest message, openai::detokenize_from(body));
    return detokenize(std::move(message));
  }
  TANDEM_ASSIGN_OR_RETURN(v1::TokenizeRequest message, kind_ == Kind::kTokenize
                                                           ? openai::tokenize_from(body)
                                                           : openai::count_tokens_from(body));
  return tokenize(std::move(message));
}

// A server with one model needs no name of it, as llama.cpp's.
absl::Status TokenCall::find_model(std::string* name) {
  TANDEM_ASSIGN_OR_RETURN(engine_, record_.state.ready_engine());
  if (name->empty()) {
    const std::vector<DeploymentInfo> all = engine_->deployments();
    if (all.size() == 1) *name = all[0].name;
  }
  record_.summary.model = *name;
  return check_model_name(*name);
}

absl::Status TokenCall::tokenize(v1::TokenizeRequest message) {
  TANDEM_RETURN_IF_ERROR(find_model(message.mutable_model()));
  TANDEM_ASSIGN_OR_RETURN(TokenizeRequest request, tokenize_request_from(message));
  request.client = record_.info.client;
  request.host = host_of(record_.info.peer);
  record_.summary.reached_engine = true;
  const auto done =
      [call = shared_from_this(), model = message.model(),
       texts = message.return_token_texts()](const absl::StatusOr<std::vector<Token>>& tokens) {
        call->on_tokens(model, texts, tokens);
      };
  attach(engine_->tokenize(std::move(request), done));
  return absl::OkStatus();
}

absl::Status TokenCall::detokenize(v1::DetokenizeRequest message) {
  TANDEM_RETURN_IF_ERROR(find_model(message.mutable_model()));
  DetokenizeRequest request;
  request.model = message.model();
  request.client = record_.info.client;
  request.host = host_of(record_.info.peer);
  request.token_ids.assign(message.token_ids().begin(), message.token_ids().end());
  request.skip_special_tokens = message.skip_special_tokens();
  record_.summary.reached_engine = true;
  const auto done = [call = shared_from_this()](const absl::StatusOr<std::string>& text) {
    if (!text.ok()) return call->end(text.status());
    call->end(openai::detokenize_json(*text));
  };
  attach(engine_->detokenize(std::move(request), done));
  return absl::OkStatus();
}

absl::Status TokenCall::embed() {
  TANDEM_ASSIGN_OR_RETURN(openai::EmbeddingsRequest request,
                          openai::embeddings_from(exchange_->message.body));
  v1::EmbedRequest& message = request.message;
  TANDEM_RETURN_IF_ERROR(find_model(message.mutable_model()));
  TANDEM_RETURN_IF_ERROR(check_embed(message, kInput));
  const int64_t bytes = answer_bytes(message, *engine_);
  TANDEM_RETURN_IF_ERROR(
      check_response_size(static_cast<size_t>(bytes), record_.state.config.max_send_bytes));
  TANDEM_RETURN_IF_ERROR(
      exchange_->charge.try_resize(exchange_->charge.bytes() + kEmbeddingFactor * bytes));
  record_.summary.reached_engine = true;
  const auto done = [call = shared_from_this(), model = message.model(),
                     base64 = request.base64](const absl::StatusOr<v1::EmbedResponse>& response) {
    if (!response.ok()) return call->end(response.status());
    call->end(openai::embeddings_json(*response, model, base64));
  };
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<OpenCall> open,
                          engine_->open_call(message.model(), record_.info.client));
  const auto embed = Embed::start(std::move(message), record_.info, embedder_of(engine_),
                                  std::move(open), done, kInput);
  attach([embed] { embed->cancel(); });
  return absl::OkStatus();
}

absl::Status TokenCall::rerank() {
  TANDEM_ASSIGN_OR_RETURN(v1::RerankRequest message, openai::rerank_from(exchange_->message.body));
  TANDEM_RETURN_IF_ERROR(find_model(message.mutable_model()));
  TANDEM_RETURN_IF_ERROR(check_rerank(message));
  if (message.return_documents()) {  // the answer has them, and its JSON
    const auto bytes = static_cast<int64_t>(exchange_->message.body.size());
    TANDEM_RETURN_IF_ERROR(exchange_->charge.try_resize(exchange_->charge.bytes() + 2 * bytes));
  }
  record_.summary.reached_engine = true;
  const auto done =
      [call = shared_from_this(), model = message.model(),
       documents = message.return_documents()](const absl::StatusOr<v1::RerankResponse>& response) {
        if (!response.ok()) return call->end(response.status());
        call->end(openai::rerank_json(*response, model, documents));
      };
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<OpenCall> open,
                          engine_->open_call(message.model(), record_.info.client));
  const RerankScorer scorer = scorer_of(engine_, message.model());
  const auto rerank =
      Rerank::start(std::move(message), record_.info, scorer, std::move(open), done);
  attach([rerank] { rerank->cancel(); });
  return absl::OkStatus();
}

void TokenCall::note(const std::string& model, const std::string& adapter) {
  record_.summary.model = model;
  record_.summary.adapter = adapter;
}

absl::Status TokenCall::load_adapter() {
  TANDEM_ASSIGN_OR_RETURN(const v1::LoadAdapterRequest message,
                          openai::load_adapter_from(exchange_->message.body));
  note(message.model(), message.adapter());
  return tandem::load_adapter(
      record_.state, record_.info, message,
      [call = shared_from_this(), name = message.adapter()](const absl::Status& status) {
        if (!status.ok()) return call->end(openai::with_lora_names(status));
        call->end(openai::adapter_loaded(name));
      });
}

absl::Status TokenCall::unload_adapter() {
  TANDEM_ASSIGN_OR_RETURN(const v1::UnloadAdapterRequest message,
                          openai::unload_adapter_from(exchange_->message.body));
  note(message.model(), message.adapter());
  return tandem::unload_adapter(
      record_.state, record_.info, message,
      [call = shared_from_this(), name = message.adapter()](const absl::Status& status) {
        if (!status.ok()) return call->end(openai::with_lora_names(status));
        call->end(openai::adapter_unloaded(name));
      });
}

void TokenCall::attach(std::function<void()> cancel) {
  {
    const MutexLock lock(&mutex_);
    if (ended_) return;
    if (!gone_) {
      cancel_ = std::move(cancel);
      return;
    }
  }
  cancel();
}

void TokenCall::attach(RequestId id) {
  attach([engine = engine_, id] { engine->cancel(id); });
}

void TokenCall::on_tokens(const std::string& model, bool texts,
                          const absl::StatusOr<std::vector<Token>>& tokens) {
  if (!tokens.ok()) return end(tokens.status());
  if (kind_ == Kind::kCountTokens) return end(openai::count_tokens_json(tokens->size()));
  std::vector<std::string> strings;
  for (size_t i = 0; texts && i < tokens->size(); ++i) {
    strings.push_back(to_valid_utf8(engine_->token_bytes(model, (*tokens)[i])));
  }
  const auto deployment = engine_->deployment(model);
  end(openai::tokenize_json(*tokens, texts ? &strings : nullptr,
                            deployment.ok() ? deployment->context_length : 0));
}

void TokenCall::end(const absl::StatusOr<std::string>& answer) {
  std::function<void()> made;  // destroyed without the lock
  {
    const MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
    made = std::exchange(cancel_, nullptr);
  }
  if (entered_) record_.state.calls.leave(record_.info.peer);
  absl::Status status = answer.status();
  if (answer.ok()) {
    status = check_response_size(answer->size(), record_.state.config.max_send_bytes);
  }
  record_.end(status);
  const std::string& id = record_.info.request_id;
  OpenAiError error;
  if (!status.ok()) error = openai_error(status, id);
  if (!status.ok() && kind_ == Kind::kCountTokens) {
    error.body = openai::messages_error(error.body, error.status, id);
  }
  const bool text = kind_ == Kind::kLoadAdapter || kind_ == Kind::kUnloadAdapter;
  PostedResponse::post(server_, exchange_, status.ok() ? 200 : error.status,
                       status.ok() ? HttpHeaders{{"Content-Type", text ? "text/plain; charset=utf-8"
                                                                       : "application/json"},
                                                 {"X-Request-Id", id}}
                                   : error.headers,
                       status.ok() ? *answer : error.body, std::move(self_));
}

void TokenCall::closed() {
  std::function<void()> cancel;
  {
    const MutexLock lock(&mutex_);
    gone_ = true;
    cancel = std::exchange(cancel_, nullptr);
  }
  turns_.cancel(turn_number_, no_request());
  if (cancel) cancel();
}

}  // namespace tandem
