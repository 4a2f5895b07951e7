#include "server/http/openai_call.h"

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "server/grpc/call_memory.h"
#include "server/grpc/request_from_proto.h"
#include "server/http/openai_api.h"
#include "server/openai/json_text.h"

namespace tandem {
namespace {

constexpr int64_t kMaxJoinedBytes = 256 << 10;
// Text with room to grow, and the complete JSON.
constexpr int64_t kCopiesOfAnswer = 3;
constexpr int64_t kAnswerStep = 4 << 10;  // of the charge of an answer
constexpr size_t kTurnBytes = 4 << 10;    // the cost of a request, in addition to its body

// The prompts after the first one.
absl::Status read_more_prompts(const openai::Request& from, CompletionBatch::Plan* plan) {
  for (size_t i = 0; i < from.more_prompts.size(); ++i) {
    v1::GenerateRequest message = from.more_prompts[i];
    message.set_model(from.message.model());
    auto checked = generate_request_from(message);
    if (!checked.ok()) return of_prompt(checked.status(), static_cast<int>(i) + 1);
    plan->more_prompts.push_back(std::move(checked->prompt));
  }
  return absl::OkStatus();
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void OpenAiItem::append(const OpenAiItem& later) {
  count += later.count;
  text += later.text;
  more.append(later.more);
  listed.insert(listed.end(), later.listed.begin(), later.listed.end());
  token_bytes += kOverhead + later.token_bytes;  // keeps bytes() the sum of both
}

// Forwards the engine's events to the call.
class OpenAiCall::EngineSink final : public BatchSink {
 public:
  explicit EngineSink(std::shared_ptr<OpenAiCall> call) : call_(std::move(call)) {}
  void made(int64_t tokens) override {
    if (call_->stream_) call_->out_.produced(tokens);
  }
  void started(int prompt, const Started& event) override { call_->on_started(prompt, event); }
  void echo(int choice, std::string text, std::vector<TokenInfo> tokens) override {
    call_->on_echo(choice, std::move(text), tokens);
  }
  void chunk(Chunk event) override { call_->on_chunk(std::move(event)); }
  void finished(Finished event) override { call_->on_finished(event); }
  void failed(const absl::Status& status) override { call_->on_failed(call_->renamed(status)); }

 private:
  const std::shared_ptr<OpenAiCall> call_;
};

OpenAiCall::OpenAiCall(openai::Kind kind, ServerState& state, HttpServer& server,
                       ClientTurns& turns, std::shared_ptr<HttpExchange> exchange)
    : kind_(kind),
      server_(server),
      turns_(turns),
      exchange_(std::move(exchange)),
      created_(unix_time()),
      out_({state.config.max_unread_bytes, state.config.max_unread_tokens, kMaxJoinedBytes}, this),
      record_(state) {}

void OpenAiCall::start(const char* name, openai::Kind kind, ServerState& state, HttpServer& server,
                       ClientTurns& turns, std::shared_ptr<HttpExchange> exchange,
                       std::unique_ptr<openai::Translation> translation) {
  const std::shared_ptr<OpenAiCall> call(
      new OpenAiCall(kind, state, server, turns, std::move(exchange)));
  call->self_ = call;
  call->translation_ = std::move(translation);
  const HttpExchange& from = *call->exchange_;
  call->record_.info = begin_call(name, state, from.message, from.peer);
  call->exchange_->listen(call.get());
  absl::Status entered = state.calls.enter(from.peer.address);
  call->entered_ = entered.ok();
  if (entered.ok()) entered = call->charge_answer();
  if (!entered.ok()) return call->parse(entered);
  const auto cost = static_cast<int64_t>(from.message.body.size() + kTurnBytes);
  call->turn_number_ =
      turns.enter(from.client, cost, [call](const absl::Status& turn) { call->parse(turn); });
}

absl::Status OpenAiCall::charge_answer() {
  TANDEM_ASSIGN_OR_RETURN(answer_charge_, charge_call(record_.state, record_.info, 0));
  return absl::OkStatus();
}

// --- A thread of `turns_`

void OpenAiCall::parse(const absl::Status& turn) {
  const absl::Status status = turn.ok() ? submit() : turn;
  if (status.ok()) return;
  exchange_->drop_body();
  on_failed(status);
}

absl::StatusOr<openai::Request> OpenAiCall::read_request(const std::string& body) {
  if (translation_ == nullptr) return openai::request_from(kind_, body);
  TANDEM_ASSIGN_OR_RETURN(const std::string chat, translation_->request(body));
  auto read = openai::request_from(kind_, chat);
  if (!read.ok()) return translation_->renamed(read.status());
  for (const auto& [name, set] : {std::pair("tandem.tokens", read->message.return_token_texts()),
                                  std::pair("tandem.trace", read->message.trace())}) {
    if (set) return out_of_range(name, "true", "false; use /v1/chat/completions");
  }
  return read;
}

// `status` with the client's names of the fields.
absl::Status OpenAiCall::renamed(const absl::Status& status) const {
  const absl::Status of_openai = openai::renamed(status, kind_, names_);
  return translation_ == nullptr ? of_openai : translation_->renamed(of_openai);
}

absl::Status OpenAiCall::submit() {
  if (gone_.load()) return no_request();
  TANDEM_RETURN_IF_ERROR(record_.info.authenticated);
  const std::string& body = exchange_->message.body;
  TANDEM_RETURN_IF_ERROR(
      exchange_->charge.try_resize(exchange_->charge.bytes() + openai::parse_memory(body)));
  auto read = read_request(body);
  if (!read.ok()) return read.status();
  openai::Request& request = *read;
  names_ = request.names;
  auto checked = record_.check(request.message);
  if (!checked.ok()) return renamed(checked.status());
  CompletionBatch::Plan plan;
  const absl::Status prompts = read_more_prompts(request, &plan);
  if (!prompts.ok()) return renamed(prompts);
  plan.request = std::move(checked->request);
  plan.request.stopping.fill_context = request.fill_context;
  plan.echo = request.echo;
  plan.score = request.logprobs;
  plan.generate = !request.score_only;
  plan.suffix = std::move(request.suffix);

  stream_ = request.stream;
  head_ = {kind_,
           record_.info.request_id,
           created_,
           plan.request.model,
           request.logprobs,
           static_cast<int>(plan.request.n),
           request.best,
           request.message.return_token_texts(),
           request.message.trace()};
  token_bytes_ = checked->token_bytes;
  batch_ = std::make_shared<CompletionBatch>(checked->engine, std::move(plan),
                                             std::make_shared<EngineSink>(shared_from_this()));
  record_.expect(batch_->choices());
  if (stream_) {
    events_.emplace(head_, batch_->choices(), request.include_usage, request.usage_so_far);
  } else {
    answer_.emplace(head_, batch_->choices());
  }
  // With more prompts, the charge of the body covers those that the batch holds.
  if (request.more_prompts.empty()) exchange_->drop_body();
  batch_->start();
  out_.attach();
  return absl::OkStatus();
}

// --- Events of the engine

void OpenAiCall::on_started(int prompt, const Started& event) {
  if (!stream_) {
    if (!too_long_) answer_->started(started_to_proto(event));
    return;
  }
  OpenAiItem item;
  item.text = events_->started(started_to_proto(event), prompt);
  if (!item.text.empty()) out_.put(std::move(item));
}

void OpenAiCall::list_tokens(const std::vector<TokenInfo>& tokens, OpenAiItem* item) const {
  for (size_t i = 0; token_bytes_ != nullptr && i < tokens.size(); ++i) {
    token_to_proto(tokens[i], token_bytes_, &item->listed.emplace_back());
    item->token_bytes += static_cast<int64_t>(item->listed.back().ByteSizeLong());
  }
}

void OpenAiCall::on_echo(int choice, std::string text, const std::vector<TokenInfo>& tokens) {
  if (too_long_) return;
  OpenAiItem item;
  item.choice = choice;
  item.text = std::move(text);
  list_tokens(tokens, &item);
  if (stream_) return out_.put(std::move(item));
  answer_->echo(choice, item.text, item.listed);
  check_answer();
}

void OpenAiCall::on_chunk(Chunk event) {
  record_.on_chunk(event);
  if (too_long_) return;
  OpenAiItem item;
  item.choice = event.index;
  item.count = static_cast<int64_t>(event.tokens.size());
  item.text = std::move(event.text);
  item.more.reasoning = std::move(event.reasoning);
  for (const CallPart& part : event.tool_calls) item.more.add(call_to_proto(part));
  list_tokens(event.tokens, &item);
  if (!stream_) {
    answer_->chunk(item.choice, item.text, item.listed, item.more);
    return check_answer();
  }
  const bool empty = item.text.empty() && item.listed.empty() && item.more.empty();
  if (empty) return out_.skip(item.count);
  out_.put(std::move(item));
}

void OpenAiCall::check_answer() {
  absl::Status fits = check_response_size(answer_->bytes(), record_.state.config.max_send_bytes);
  if (fits.ok()) fits = charge_answer(kCopiesOfAnswer * static_cast<int64_t>(answer_->bytes()));
  if (fits.ok()) return;
  too_long_ = true;
  answer_.reset();
  on_failed(fits);
}

// In steps, because a short answer grows with every token.
absl::Status OpenAiCall::charge_answer(int64_t bytes) {
  if (bytes <= answer_charge_.bytes()) return absl::OkStatus();
  return answer_charge_.try_resize(bytes + std::max(kAnswerStep, bytes / 4));
}

void OpenAiCall::on_finished(const Finished& event) {
  if (too_long_) return;
  const v1::Finished finished = record_.on_finished(event);
  if (event.index % head_.per_prompt == 0) prompt_tokens_ += event.usage.prompt_tokens;
  record_.summary.prompt_tokens = prompt_tokens_;
  OpenAiItem item;
  if (stream_) {
    item.text = events_->finished(finished);
    if (!record_.all_finished()) return out_.put(std::move(item));
    item.text += events_->end();
  } else {
    answer_->finished(finished);
    if (finished.has_trace()) check_answer();
    if (too_long_ || !record_.all_finished()) return;
    item.text = answer_->json();
    if (translation_ != nullptr) item.text = translation_->answer(item.text);
    const absl::Status fits =
        check_response_size(item.text.size(), record_.state.config.max_send_bytes);
    if (!fits.ok()) return on_failed(fits);
  }
  end(absl::OkStatus(), std::move(item));  // the end goes with the last of it
}

void OpenAiCall::on_failed(const absl::Status& status) {
  end(status.ok() ? absl::InternalError("failed with OK")
                  : classify_cancellation(status, record_.info));
}

// Logged before the client can know of it.
void OpenAiCall::end(const absl::Status& status, std::optional<OpenAiItem> last) {
  if (record_.end(status)) out_.end(status, std::move(last));
}

// --- HTTP server's thread

std::string OpenAiCall::render(const OpenAiItem& item) {
  std::string events =
      item.choice < 0 ? item.text
                      : events_->chunk(item.choice, item.text, item.listed, item.count, item.more);
  return translation_ == nullptr ? events : translation_->events(events);
}

// Called before the first event, which may also be the last.
void OpenAiCall::begin_stream() {
  if (exchange_->begun()) return;
  exchange_->begin(200, {{"Content-Type", "text/event-stream; charset=utf-8"},
                         {"Cache-Control", "no-cache"},
                         {"X-Accel-Buffering", "no"},
                         {"X-Request-Id", record_.info.request_id}});
}

void OpenAiCall::write(OpenAiItem item) {
  begin_stream();
  exchange_->write(render(item));
}

void OpenAiCall::write_last(OpenAiItem item) {
  finishing_ = true;
  if (stream_) {
    begin_stream();
    return exchange_->end(render(item));
  }
  exchange_->respond(
      200, {{"Content-Type", "application/json"}, {"X-Request-Id", record_.info.request_id}},
      item.text);
}

void OpenAiCall::finish(const absl::Status& status) {
  finishing_ = true;
  const std::string& id = record_.info.request_id;
  const OpenAiError error = openai_error(status, id);
  if (!exchange_->begun()) {
    return exchange_->respond(
        error.status, error.headers,
        translation_ == nullptr ? error.body : translation_->error(error.body, error.status, id));
  }
  exchange_->end(translation_ == nullptr ? openai::Events::error(error.body)
                                         : translation_->error_event(error.body, error.status, id));
}

void OpenAiCall::written(bool ok) {
  if (!finishing_) return out_.written(ok);
  const bool done = std::exchange(done_, true);
  const std::shared_ptr<OpenAiCall> call = self_;  // may end before this returns
  out_.finished();
  if (!done) out_.done(/*cancel=*/too_long_);
}

void OpenAiCall::closed() {
  if (std::exchange(done_, true)) return;
  const std::shared_ptr<OpenAiCall> call = self_;
  gone_.store(true);
  turns_.cancel(turn_number_, no_request());
  out_.done(/*cancel=*/true);
}

void OpenAiCall::release() {
  exchange_->listen(nullptr);
  answer_charge_.release();
  if (entered_) record_.state.calls.leave(record_.info.peer);
  self_.reset();
}

}  // namespace tandem
