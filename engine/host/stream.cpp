#include "engine/host/stream.h"

#include <cmath>
#include <iterator>
#include <utility>

namespace tandem {

TokenInfo token_info(const Emitted& token, bool logprobs) {
  TokenInfo info;
  info.id = token.token;
  info.provenance = token.provenance;
  if (!logprobs) return info;
  if (!std::isnan(token.logprob)) info.logprob = token.logprob;
  for (const Ranked& r : token.top) info.top.emplace_back(r.token, r.logprob);
  return info;
}

// Strand only, but for `arrived`, which the loop fills.
struct RequestStream::Delivery {
  Delivery(StreamPlan p, std::shared_ptr<Sink> s, std::function<void()> g)
      : plan(std::move(p)),
        sink(std::move(s)),
        gone(std::move(g)),
        decoder(plan.tokenizer, plan.skip_special_tokens, plan.context),
        stops(plan.stop_sequences, plan.include_stop_sequence) {}

  // True: a job that will take it is on its way already.
  bool add(std::vector<Emitted> tokens) {
    const std::lock_guard lock(mutex);
    const bool waiting = !arrived.empty();
    arrived.insert(arrived.end(), std::make_move_iterator(tokens.begin()),
                   std::make_move_iterator(tokens.end()));
    return waiting;
  }

  Chunk take() {
    std::vector<Emitted> tokens;
    {
      const std::lock_guard lock(mutex);
      tokens.swap(arrived);
    }
    Chunk chunk;
    for (const Emitted& e : tokens) {
      std::string text;
      decoder.push(e.token, text);
      stops.push(text, chunk.text);
      chunk.tokens.push_back(token_info(e, plan.logprobs));
    }
    return chunk;
  }

  void deliver() {
    Chunk chunk = take();
    if (!chunk.tokens.empty() || !chunk.text.empty()) sink->chunk(std::move(chunk));
  }

  void end(const SequenceEnd& e) {
    if (!e.status.ok()) {
      deliver();
      sink->failed(e.status);
      gone();
      return;
    }
    Chunk last = take();
    std::string text;
    decoder.finish(text);
    stops.push(text, last.text);
    stops.finish(last.text);
    if (!last.tokens.empty() || !last.text.empty()) sink->chunk(std::move(last));
    Finished finished;
    finished.method = plan.started.method;
    finished.reason = e.reason;
    if (e.stop_index >= 0) {
      finished.stop_sequence = plan.stop_sequences[static_cast<size_t>(e.stop_index)];
    }
    finished.seed = plan.seed;
    finished.usage.prompt_tokens = e.prompt_tokens;
    finished.usage.completion_tokens = e.completion_tokens;
    finished.stats = e.stats;
    sink->finished(finished);
    gone();
  }

  const StreamPlan plan;
  const std::shared_ptr<Sink> sink;
  const std::function<void()> gone;
  StreamDecoder decoder;
  StopMatcher stops;
  std::mutex mutex;
  std::vector<Emitted> arrived;  // guarded by mutex
};

RequestStream::RequestStream(TextPool* pool, StreamPlan plan, std::shared_ptr<Sink> sink,
                             std::function<void()> gone)
    : strand_(std::make_shared<Strand>(pool)),
      delivery_(std::make_shared<Delivery>(std::move(plan), std::move(sink), std::move(gone))) {}

void RequestStream::on_admitted() {
  strand_->post([d = delivery_] { d->sink->started(d->plan.started); });
}

void RequestStream::on_tokens(std::vector<Emitted> tokens) {
  if (delivery_->add(std::move(tokens))) return;
  strand_->post([d = delivery_] { d->deliver(); });
}

void RequestStream::on_end(const SequenceEnd& end) {
  strand_->post([d = delivery_, end] { d->end(end); });
}

}  // namespace tandem
