#include "server/http/token_call.h"

#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "server/edge/peer.h"
#include "server/grpc/complete_response.h"
#include "server/grpc/request_from_proto.h"
#include "server/http/call_headers.h"
#include "server/http/openai_api.h"
#include "server/http/posted_response.h"
#include "server/openai/json_text.h"
#include "server/openai/tokens.h"
#include "server/openai/translation.h"

namespace tandem {
namespace {

constexpr size_t kTurnBytes = 4 << 10;  // the cost of a request, in addition to its body

const char* name_of(TokenCall::Kind kind) {
  switch (kind) {
    case TokenCall::Kind::kTokenize:
      return "openai/tokenize";
    case TokenCall::Kind::kDetokenize:
      return "openai/detokenize";
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
  call->record_.info = begin_call(name_of(kind), state, from.peer, call_headers_of(from.message));
  call->exchange_->listen(call.get());
  const absl::Status entered = state.calls.enter(from.peer);
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

void TokenCall::attach(RequestId id) {
  bool gone = false;
  {
    const MutexLock lock(&mutex_);
    id_ = id;
    gone = gone_;
  }
  if (gone) engine_->cancel(id);
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

void TokenCall::end(const absl::StatusOr<std::string>& json) {
  {
    const MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
  }
  if (entered_) record_.state.calls.leave(record_.info.peer);
  absl::Status status = json.status();
  if (json.ok()) {
    status = check_response_size(json->size(), record_.state.config.max_send_bytes);
  }
  record_.end(status);
  const std::string& id = record_.info.request_id;
  OpenAiError error;
  if (!status.ok()) error = openai_error(status, id);
  if (!status.ok() && kind_ == Kind::kCountTokens) {
    error.body = openai::messages_error(error.body, error.status, id);
  }
  PostedResponse::post(server_, exchange_, status.ok() ? 200 : error.status,
                       status.ok()
                           ? HttpHeaders{{"Content-Type", "application/json"}, {"X-Request-Id", id}}
                           : error.headers,
                       status.ok() ? *json : error.body, std::move(self_));
}

void TokenCall::closed() {
  RequestId id = 0;
  {
    const MutexLock lock(&mutex_);
    gone_ = true;
    if (!ended_) id = id_;
  }
  turns_.cancel(turn_number_, no_request());
  if (id != 0) engine_->cancel(id);
}

}  // namespace tandem
