#include "server/grpc/generation_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/edge/peer.h"
#include "server/grpc/call_record.h"
#include "server/grpc/complete_response.h"
#include "server/grpc/embed.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/request_from_proto.h"
#include "server/grpc/rerank.h"
#include "server/grpc/response_to_proto.h"
#include "server/grpc/unary_call.h"

namespace tandem {
namespace {

using Call = std::shared_ptr<UnaryCall>;

// Tags and lengths of the two texts of a token.
constexpr size_t kStringsOfToken = 4;

// The common first steps of the unary methods.
template <class Request>
absl::StatusOr<Engine*> open(UnaryCall& call, ServerState& state, const grpc::ByteBuffer& bytes,
                             Request* request) {
  TANDEM_RETURN_IF_ERROR(call.parse(bytes, request));
  call.summary.model = request->model();
  return state.ready_engine();
}

// Adopts the client's request id, if any.
absl::Status adopt_request_id(UnaryCall& call, const std::string& id) {
  TANDEM_RETURN_IF_ERROR(check_request_id(id));
  if (!id.empty()) call.info.request_id = id;
  return absl::OkStatus();
}

// Collects the events of a request into one response. The engine sends one event at a time.
class CompleteSink final : public Sink {
 public:
  CompleteSink(Call call, const CheckedRequest& checked)
      : call_(std::move(call)),
        response_(checked.with_tokens, checked.token_bytes),
        choices_(checked.request.n) {}

  void started(const Started& event) override { response_.add(event); }

  void chunk(Chunk event) override {
    if (!event.tokens.empty() && first_token_seconds_ == 0) {
      first_token_seconds_ = seconds(std::chrono::steady_clock::now() - call_->info.arrived);
    }
    if (too_long_) return;
    response_.add(event);
    check_size();
  }

  void finished(const Finished& event) override {
    if (too_long_) return;
    response_.add(finished_to_proto(event, first_token_seconds_));
    if (event.trace) check_size();
    if (too_long_) return;
    call_->summary.add(event);
    call_->summary.first_token_seconds = first_token_seconds_;
    if (--choices_ == 0) call_->finish(response_.response());
  }

  void failed(const absl::Status& status) override {
    call_->fail(classify_cancellation(status, call_->info));
  }

 private:
  void check_size() {
    const absl::Status fits = call_->hold_answer(response_.bytes());
    if (fits.ok()) return;
    too_long_ = true;
    response_ = {};
    call_->abort(fits);
  }

  const Call call_;
  CompleteResponseBuilder response_;
  int64_t choices_;  // not yet finished
  bool too_long_ = false;
  double first_token_seconds_ = 0;
};

absl::Status start_complete(const Call& call, ServerState& state, const grpc::ByteBuffer& bytes) {
  v1::GenerateRequest message;
  TANDEM_RETURN_IF_ERROR(call->parse(bytes, &message));
  TANDEM_ASSIGN_OR_RETURN(CheckedRequest checked,
                          check_request(message, state, &call->info, &call->summary));
  const auto sink = std::make_shared<CompleteSink>(call, checked);
  Engine* const engine = checked.engine;
  const RequestId id = engine->submit(std::move(checked.request), sink);
  call->on_cancel([engine, id] { engine->cancel(id); });
  return absl::OkStatus();
}

// Stops when the answer exceeds a limit.
absl::StatusOr<v1::ScoreResponse> score_to_proto(const ScoreResult& in,
                                                 const TokenBytes& token_bytes, UnaryCall* call) {
  v1::ScoreResponse out;
  size_t wire_bytes = 0;
  const auto add = [&](const TokenInfo& token, v1::Token* place) {
    token_to_proto(token, token_bytes, place);
    wire_bytes += place->ByteSizeLong();
    return call->hold_answer(wire_bytes);
  };
  for (const TokenInfo& token : in.prompt) {
    TANDEM_RETURN_IF_ERROR(add(token, out.add_prompt_tokens()));
  }
  for (const TokenInfo& token : in.continuation) {
    TANDEM_RETURN_IF_ERROR(add(token, out.add_continuation_tokens()));
  }
  out.set_total_logprob(in.total_logprob);
  usage_to_proto(in.usage, out.mutable_usage());
  return out;
}

absl::Status start_score(const Call& call, ServerState& state, const grpc::ByteBuffer& bytes) {
  v1::ScoreRequest message;
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, open(*call, state, bytes, &message));
  TANDEM_RETURN_IF_ERROR(adopt_request_id(*call, message.request_id()));
  TANDEM_ASSIGN_OR_RETURN(ScoreRequest request, score_request_from(message));
  call->summary.adapter = engine->adapter(request.model, request.adapter);
  request.priority = priority_of(call->info, *engine, request.priority);
  request.request_id = call->info.request_id;
  request.client = call->info.client;
  request.host = host_of(call->info.peer);
  request.deadline = call->info.deadline;
  const TokenBytes token_bytes = [engine, model = request.model](Token id) {
    return engine->token_bytes(model, id);
  };
  call->summary.reached_engine = true;
  const RequestId id =
      engine->score(std::move(request), [call, token_bytes](absl::StatusOr<ScoreResult> result) {
        if (!result.ok()) return call->fail(classify_cancellation(result.status(), call->info));
        auto answer = score_to_proto(*result, token_bytes, call.get());
        if (!answer.ok()) return call->fail(answer.status());
        answer->set_request_id(call->info.request_id);
        call->finish(*answer);
      });
  call->on_cancel([engine, id] { engine->cancel(id); });
  return absl::OkStatus();
}

absl::Status start_rerank(const Call& call, ServerState& state, const grpc::ByteBuffer& bytes) {
  v1::RerankRequest message;
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, open(*call, state, bytes, &message));
  TANDEM_RETURN_IF_ERROR(adopt_request_id(*call, message.request_id()));
  TANDEM_RETURN_IF_ERROR(check_rerank(message));
  message.set_priority(priority_of(call->info, *engine, message.priority()));
  call->summary.reached_engine = true;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<OpenCall> open_call,
                          engine->open_call(message.model(), call->info.client));
  const RerankScorer scorer = scorer_of(engine, message.model());
  const auto rerank =
      Rerank::start(std::move(message), call->info, scorer, std::move(open_call),
                    [call](absl::StatusOr<v1::RerankResponse> response) {
                      if (!response.ok())
                        return call->fail(classify_cancellation(response.status(), call->info));
                      call->finish(*response);
                    });
  call->on_cancel([rerank] { rerank->cancel(); });
  return absl::OkStatus();
}

absl::Status start_embed(const Call& call, ServerState& state, const grpc::ByteBuffer& bytes) {
  v1::EmbedRequest message;
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, open(*call, state, bytes, &message));
  TANDEM_RETURN_IF_ERROR(adopt_request_id(*call, message.request_id()));
  TANDEM_RETURN_IF_ERROR(check_embed(message));
  TANDEM_RETURN_IF_ERROR(call->hold_answer(static_cast<size_t>(answer_bytes(message, *engine))));
  call->summary.reached_engine = true;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<OpenCall> open_call,
                          engine->open_call(message.model(), call->info.client));
  const auto embed =
      Embed::start(std::move(message), call->info, embedder_of(engine), std::move(open_call),
                   [call](absl::StatusOr<v1::EmbedResponse> response) {
                     if (!response.ok())
                       return call->fail(classify_cancellation(response.status(), call->info));
                     call->finish(*response);
                   });
  call->on_cancel([embed] { embed->cancel(); });
  return absl::OkStatus();
}

absl::Status start_tokenize(const Call& call, ServerState& state, const grpc::ByteBuffer& bytes) {
  v1::TokenizeRequest message;
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, open(*call, state, bytes, &message));
  TANDEM_ASSIGN_OR_RETURN(TokenizeRequest request, tokenize_request_from(message));
  request.client = call->info.client;
  request.host = host_of(call->info.peer);
  request.deadline = call->info.deadline;
  call->summary.reached_engine = true;
  const auto done = [call, engine, model = request.model, texts = message.return_token_texts()](
                        const absl::StatusOr<std::vector<Token>>& tokens) {
    if (!tokens.ok()) return call->fail(classify_cancellation(tokens.status(), call->info));
    v1::TokenizeResponse answer;
    size_t wire_bytes = 0;
    for (const Token token : *tokens) {
      answer.add_token_ids(token);
      ++wire_bytes;
      if (texts) {
        const std::string& bytes = *answer.add_token_bytes() = engine->token_bytes(model, token);
        const std::string& text = *answer.add_token_texts() = to_valid_utf8(bytes);
        wire_bytes += bytes.size() + text.size() + kStringsOfToken;
      }
      const absl::Status held = call->hold_answer(wire_bytes);
      if (!held.ok()) return call->fail(held);
    }
    call->finish(answer);
  };
  const RequestId id = engine->tokenize(std::move(request), done);
  call->on_cancel([engine, id] { engine->cancel(id); });
  return absl::OkStatus();
}

absl::Status start_detokenize(const Call& call, ServerState& state, const grpc::ByteBuffer& bytes) {
  v1::DetokenizeRequest message;
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, open(*call, state, bytes, &message));
  TANDEM_RETURN_IF_ERROR(check_model_name(message.model()));
  DetokenizeRequest request;
  request.model = message.model();
  request.client = call->info.client;
  request.host = host_of(call->info.peer);
  request.token_ids.assign(message.token_ids().begin(), message.token_ids().end());
  if (message.has_skip_special_tokens())
    request.skip_special_tokens = message.skip_special_tokens();
  request.deadline = call->info.deadline;
  call->summary.reached_engine = true;
  const auto done = [call](absl::StatusOr<std::string> text) {
    if (!text.ok()) return call->fail(classify_cancellation(text.status(), call->info));
    v1::DetokenizeResponse answer;
    answer.set_text(to_valid_utf8(*std::move(text)));
    call->finish(answer);
  };
  const RequestId id = engine->detokenize(std::move(request), done);
  call->on_cancel([engine, id] { engine->cancel(id); });
  return absl::OkStatus();
}

}  // namespace

GenerationService::GenerationService(ServerState& state) : state_(state) {
  const auto unary = [this](const char* path, const char* name, const UnaryCall::Start& start) {
    add_method(path, [this, name, start](grpc::CallbackServerContext* context) {
      return UnaryCall::begin(name, state_, context, start);
    });
  };
  generate_ = add_async_method("/tandem.v1.Generation/Generate");
  unary("/tandem.v1.Generation/Complete", "Complete", start_complete);
  unary("/tandem.v1.Generation/Score", "Score", start_score);
  unary("/tandem.v1.Generation/Rerank", "Rerank", start_rerank);
  unary("/tandem.v1.Generation/Embed", "Embed", start_embed);
  unary("/tandem.v1.Generation/Tokenize", "Tokenize", start_tokenize);
  unary("/tandem.v1.Generation/Detokenize", "Detokenize", start_detokenize);
}

void GenerationService::serve_streams(CallThread& arrivals, CallThread& streams, int64_t calls) {
  for (int64_t i = 0; i < calls; ++i) GenerateCall::accept(state_, generate_, arrivals, streams);
}

}  // namespace tandem
