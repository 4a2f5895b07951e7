#include "engine/host/requests/stream.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "engine/base/mutex.h"
#include "engine/pass/constraint.h"
#include "engine/text/stream_decoder.h"

namespace tandem {

TokenInfo token_info(const Emitted& token, bool logprobs) {
  TokenInfo info;
  info.id = token.token;
  info.provenance = token.provenance;
  info.pass = token.pass;
  if (!logprobs) return info;
  if (!std::isnan(token.logprob)) info.logprob = token.logprob;
  for (const Ranked& r : token.top) info.top.emplace_back(r.token, r.logprob);
  return info;
}

namespace {

// All choices of a request. The loop queues events at their choice. At most one job per request
// takes them from there, on a text thread.
class RequestStream : public std::enable_shared_from_this<RequestStream> {
 public:
  RequestStream(Worker* pool, StreamPlan plan, int choices, std::shared_ptr<Sink> sink,
                std::function<void()> ended);

  // The listener of one choice, owned by the stream.
  SequenceListener* choice(int index) { return choices_[static_cast<size_t>(index)].get(); }

 private:
  struct Choice final : public SequenceListener {
    Choice(RequestStream* of, int number);
    void on_admitted() override;
    void on_tokens(std::span<Emitted> tokens) override;
    void on_end(const SequenceEnd& how) override;

    // Text thread.
    Chunk text_of(const std::vector<Emitted>& tokens);
    Finished finish(const SequenceEnd& how, Chunk* last);
    void add_parts(AnswerParts parts, Chunk* chunk) const;

    RequestStream* const stream;
    const int index;
    StreamDecoder decoder;
    StopMatcher stops;
    std::optional<AnswerParser> parser;
    bool running = false;       // it has made tokens
    int64_t answer_tokens = 0;  // with a parser
    int64_t reasoning_tokens = 0;
    std::vector<Emitted> taken;  // text thread; swaps memory with Arrived::tokens
  };
  // What a choice has produced since the last job.
  struct Arrived {
    std::vector<Emitted> tokens;
    std::unique_ptr<SequenceEnd> end;
  };

  // Posts a job, unless one is posted already.
  void schedule_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run();
  void deliver(Choice& choice, const std::vector<Emitted>& tokens,
               std::unique_ptr<SequenceEnd> end);
  void send(Chunk chunk) const;
  void charge(Choice& choice, int64_t tokens) const;

  Worker* const pool_;
  const StreamPlan plan_;
  const std::shared_ptr<Sink> sink_;
  const std::function<void()> ended_;
  std::vector<std::unique_ptr<Choice>> choices_;
  size_t left_;          // choices that have not ended; text thread
  bool failed_ = false;  // the sink gets no more events; text thread

  Mutex mutex_;
  std::vector<Arrived> arrived_ ABSL_GUARDED_BY(mutex_);  // by choice
  bool scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ = false;  // text thread
};

RequestStream::Choice::Choice(RequestStream* of, int number)
    : stream(of),
      index(number),
      decoder(of->plan_.tokenizer, of->plan_.skip_special_tokens, of->plan_.context,
              of->plan_.answer ? of->plan_.answer->markers : std::vector<Token>()),
      stops(of->plan_.stops, of->plan_.include_stop_sequence) {
  const std::optional<AnswerPlan>& answer = of->plan_.answer;
  if (answer) parser.emplace(answer->syntax, answer->in_reasoning);
}

RequestStream::RequestStream(Worker* pool, StreamPlan plan, int choices, std::shared_ptr<Sink> sink,
                             std::function<void()> ended)
    : pool_(pool),
      plan_(std::move(plan)),
      sink_(std::move(sink)),
      ended_(std::move(ended)),
      left_(static_cast<size_t>(choices)),
      arrived_(left_) {
  for (int i = 0; i < choices; ++i) choices_.push_back(std::make_unique<Choice>(this, i));
}

// --- Loop thread

void RequestStream::Choice::on_admitted() {
  const MutexLock lock(&stream->mutex_);
  if (std::exchange(stream->admitted_, true)) return;  // another choice came first
  if (stream->plan_.claims) stream->plan_.claims->admitted();
  stream->schedule_locked();
}

void RequestStream::Choice::on_tokens(std::span<Emitted> tokens) {
  stream->sink_->made(static_cast<int64_t>(tokens.size()));
  const MutexLock lock(&stream->mutex_);
  std::vector<Emitted>& arrived = stream->arrived_[static_cast<size_t>(index)].tokens;
  arrived.insert(arrived.end(), std::make_move_iterator(tokens.begin()),
                 std::make_move_iterator(tokens.end()));
  stream->schedule_locked();
}

void RequestStream::Choice::on_end(const SequenceEnd& how) {
  const MutexLock lock(&stream->mutex_);
  stream->arrived_[static_cast<size_t>(index)].end = std::make_unique<SequenceEnd>(how);
  stream->schedule_locked();
}

void RequestStream::schedule_locked() {
  if (std::exchange(scheduled_, true)) return;
  pool_->post([self = shared_from_this()] { self->run(); });
}

// --- Text thread

void RequestStream::run() {
  for (const std::unique_ptr<Choice>& choice : choices_) {
    std::unique_ptr<SequenceEnd> end;
    bool start = false;
    {
      const MutexLock lock(&mutex_);
      start = admitted_ && !started_;
      Arrived& arrived = arrived_[static_cast<size_t>(choice->index)];
      choice->taken.swap(arrived.tokens);
      end = std::move(arrived.end);
    }
    if (start) {
      started_ = true;
      if (!failed_) sink_->started(plan_.started);
    }
    deliver(*choice, choice->taken, std::move(end));
    choice->taken.clear();
  }
  const MutexLock lock(&mutex_);
  scheduled_ = false;
  // As a new job, so that one busy request does not hold a thread.
  const bool more = std::any_of(arrived_.begin(), arrived_.end(), [](const Arrived& arrived) {
    return !arrived.tokens.empty() || arrived.end != nullptr;
  });
  if (more) schedule_locked();
}

void RequestStream::deliver(Choice& choice, const std::vector<Emitted>& tokens,
                            std::unique_ptr<SequenceEnd> end) {
  if (plan_.claims) {
    charge(choice, static_cast<int64_t>(tokens.size()));
    if (end != nullptr && left_ == 1) plan_.claims->ended();
  }
  if (!failed_) {
    Chunk chunk = choice.text_of(tokens);
    if (end == nullptr || !end->status.ok()) {
      send(std::move(chunk));
      failed_ = end != nullptr;
      if (failed_) sink_->failed(end->status);
    } else {
      const Finished finished = choice.finish(*end, &chunk);
      send(std::move(chunk));
      sink_->finished(finished);
    }
  }
  if (end != nullptr && --left_ == 0) ended_();
}

void RequestStream::charge(Choice& choice, int64_t tokens) const {
  Claims& claims = *plan_.claims;
  claims.open.charge(tokens);
  if (plan_.token_bytes == 0 || tokens == 0) return;
  const bool first = !std::exchange(choice.running, true);
  const int64_t held = tokens + (first ? plan_.started.prompt_tokens : 0);
  claims.memory.resize(claims.memory.bytes() + held * plan_.token_bytes);
}

void RequestStream::send(Chunk chunk) const {
  const bool empty = chunk.tokens.empty() && chunk.text.empty() && chunk.reasoning.empty() &&
                     chunk.tool_calls.empty();
  if (empty) return;
  sink_->chunk(std::move(chunk));
}

Chunk RequestStream::Choice::text_of(const std::vector<Emitted>& tokens) {
  Chunk chunk;
  chunk.index = index;
  chunk.tokens.reserve(tokens.size());
  AnswerParts parts;
  for (const Emitted& e : tokens) {
    std::string text;
    if (!e.end) decoder.push(e.token, text);
    chunk.tokens.push_back(token_info(e, stream->plan_.logprobs));
    if (!parser) {
      stops.push(text, chunk.text);
      continue;
    }
    std::string released;
    stops.push(text, released);
    const bool in_reasoning = parser->in_reasoning();
    parser->push(released, &parts);
    ++answer_tokens;
    // The block begins the answer. Its opening tag may be several tokens.
    if (in_reasoning || parser->in_reasoning()) reasoning_tokens = answer_tokens;
  }
  add_parts(std::move(parts), &chunk);
  return chunk;
}

void RequestStream::Choice::add_parts(AnswerParts parts, Chunk* chunk) const {
  chunk->text += parts.text;
  chunk->reasoning += parts.reasoning;
  for (CallPart& part : parts.calls) {
    if (!part.name.empty()) part.id = call_id(stream->plan_.answer->id_seed, index, part.index);
    chunk->tool_calls.push_back(std::move(part));
  }
}

// Adds held-back text to `last`.
Finished RequestStream::Choice::finish(const SequenceEnd& how, Chunk* last) {
  std::string text, released;
  decoder.finish(text);
  stops.push(text, released);
  stops.finish(released);
  if (parser) {
    const bool by_model =
        how.reason == FinishReason::kEos || how.reason == FinishReason::kStopToken;
    AnswerParts parts;
    parser->push(released, &parts);
    parser->finish(/*cut=*/!by_model, &parts);
    add_parts(std::move(parts), last);
  } else {
    last->text += released;
  }
  Finished finished;
  finished.index = index;
  finished.method = stream->plan_.started.method;
  finished.reason = how.reason;
  if (how.stop_index >= 0) {
    finished.stop_sequence = stream->plan_.stops->at(static_cast<size_t>(how.stop_index));
  }
  finished.seed = stream->plan_.seed;
  finished.usage.prompt_tokens = how.prompt_tokens;
  finished.usage.cached_tokens = how.stats.cached_tokens;
  finished.usage.completion_tokens = how.completion_tokens;
  finished.usage.reasoning_tokens = reasoning_tokens;
  if (parser) finished.tool_calls = parser->complete_calls();
  finished.stats = how.stats;
  finished.trace = how.trace;
  if (how.constraint) {
    const std::shared_ptr<const LegalTokens> legal = how.constraint->after(how.answer);
    finished.constraint_satisfied = legal != nullptr && legal->may_end;
  }
  return finished;
}

}  // namespace

std::vector<std::shared_ptr<SequenceListener>> request_streams(Worker* pool, StreamPlan plan,
                                                               int choices,
                                                               std::shared_ptr<Sink> sink,
                                                               std::function<void()> ended) {
  const auto stream = std::make_shared<RequestStream>(pool, std::move(plan), choices,
                                                      std::move(sink), std::move(ended));
  std::vector<std::shared_ptr<SequenceListener>> listeners;
  for (int i = 0; i < choices; ++i) listeners.emplace_back(stream, stream->choice(i));
  return listeners;
}

}  // namespace tandem
