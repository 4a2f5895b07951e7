#include "engine/host/stream.h"

#include <cmath>
#include <iterator>
#include <mutex>
#include <utility>

#include "engine/text/stop_matcher.h"
#include "engine/text/stream_decoder.h"

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

namespace {

// What the choices of a request have in common. Strand only, once they are there.
struct Output {
  const StreamPlan plan;
  const std::shared_ptr<Strand> strand;
  const std::shared_ptr<Sink> sink;
  const std::function<void()> gone;
  int choices;  // that have not ended
  bool started = false;
  bool failed = false;  // the sink hears no more
};

class ChoiceStream final : public SequenceListener {
 public:
  ChoiceStream(const std::shared_ptr<Output>& output, int index)
      : output_(output), delivery_(std::make_shared<Delivery>(output, index)) {}

  void on_admitted() override {
    output_->strand->post([o = output_] {
      if (std::exchange(o->started, true) || o->failed) return;
      o->sink->started(o->plan.started);
    });
  }
  void on_tokens(std::vector<Emitted> tokens) override {
    if (delivery_->add(std::move(tokens))) return;
    output_->strand->post([d = delivery_] { d->deliver(); });
  }
  void on_end(const SequenceEnd& end) override {
    output_->strand->post([d = delivery_, end] { d->end(end); });
  }

 private:
  // Strand only, but for `arrived`, which the loop fills.
  struct Delivery {
    Delivery(std::shared_ptr<Output> o, int i)
        : output(std::move(o)),
          index(i),
          decoder(output->plan.tokenizer, output->plan.skip_special_tokens, output->plan.context),
          stops(output->plan.stop_sequences, output->plan.include_stop_sequence) {}

    // True: a job that will take it is on its way already.
    bool add(std::vector<Emitted> tokens) {
      const std::lock_guard lock(mutex);
      if (arrived.empty()) {
        arrived = std::move(tokens);
        return false;
      }
      arrived.insert(arrived.end(), std::make_move_iterator(tokens.begin()),
                     std::make_move_iterator(tokens.end()));
      return true;
    }

    Chunk take() {
      std::vector<Emitted> tokens;
      {
        const std::lock_guard lock(mutex);
        tokens.swap(arrived);
      }
      Chunk chunk;
      chunk.index = index;
      for (const Emitted& e : tokens) {
        std::string text;
        if (!e.end) decoder.push(e.token, text);
        stops.push(text, chunk.text);
        chunk.tokens.push_back(token_info(e, output->plan.logprobs));
      }
      return chunk;
    }

    void send(Chunk chunk) const {
      if (chunk.tokens.empty() && chunk.text.empty()) return;
      output->sink->chunk(std::move(chunk));
    }

    void deliver() {
      if (!output->failed) send(take());
    }

    void end(const SequenceEnd& e) {
      if (!output->failed) e.status.ok() ? finish(e) : fail(e.status);
      if (--output->choices == 0) output->gone();
    }

    void fail(const absl::Status& status) {
      send(take());
      output->failed = true;
      output->sink->failed(status);
    }

    void finish(const SequenceEnd& e) {
      Chunk last = take();
      std::string text;
      decoder.finish(text);
      stops.push(text, last.text);
      stops.finish(last.text);
      send(std::move(last));
      Finished finished;
      finished.index = index;
      finished.method = output->plan.started.method;
      finished.reason = e.reason;
      if (e.stop_index >= 0) {
        finished.stop_sequence = output->plan.stop_sequences[static_cast<size_t>(e.stop_index)];
      }
      finished.seed = output->plan.seed;
      finished.usage.prompt_tokens = e.prompt_tokens;
      finished.usage.cached_tokens = e.stats.cached_tokens;
      finished.usage.completion_tokens = e.completion_tokens;
      finished.stats = e.stats;
      output->sink->finished(finished);
    }

    const std::shared_ptr<Output> output;
    const int index;
    StreamDecoder decoder;
    StopMatcher stops;
    std::mutex mutex;
    std::vector<Emitted> arrived;  // guarded by mutex
  };

  const std::shared_ptr<Output> output_;
  const std::shared_ptr<Delivery> delivery_;
};

}  // namespace

std::vector<std::shared_ptr<SequenceListener>> request_streams(TextPool* pool, StreamPlan plan,
                                                               int choices,
                                                               std::shared_ptr<Sink> sink,
                                                               std::function<void()> gone) {
  const auto output = std::make_shared<Output>(Output{
      std::move(plan), std::make_shared<Strand>(pool), std::move(sink), std::move(gone), choices});
  std::vector<std::shared_ptr<SequenceListener>> streams;
  for (int i = 0; i < choices; ++i) streams.push_back(std::make_shared<ChoiceStream>(output, i));
  return streams;
}

}  // namespace tandem
