// The cost of a token between the loop and a sink: handover, decoding, delivery.
//
//   scripts/build release bench_stream && build/release/bin/bench_stream
//
// One iteration is one step of the loop: every stream gets one token, and all tokens are delivered
// before the next step. `loop_side` is the time of on_tokens() per token on the loop's thread,
// `text_side` the time on the text threads. Both are processor time and exclude waiting.
#include <benchmark/benchmark.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bench/sample_text.h"
#include "engine/base/check.h"
#include "engine/host/requests/stream.h"
#include "engine/text/tokenizer.h"

namespace tandem {
namespace {

double cpu_seconds(clockid_t clock) {
  timespec time{};
  TANDEM_CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Counts deliveries and waits for them.
class Count {
 public:
  void add(int64_t n) {
    if (count_.fetch_add(n) + n != wanted_.load()) return;
    const std::lock_guard lock(mutex_);
    reached_.notify_one();
  }
  void expect(int64_t more) { wanted_.fetch_add(more); }
  void wait() {
    std::unique_lock lock(mutex_);
    reached_.wait(lock, [this] { return count_.load() >= wanted_.load(); });
  }

 private:
  std::atomic<int64_t> count_{0}, wanted_{0};
  std::mutex mutex_;
  std::condition_variable reached_;
};

class CountingSink final : public Sink {
 public:
  explicit CountingSink(Count* count) : count_(count) {}
  void started(const Started&) override {}
  void chunk(Chunk event) override {
    benchmark::DoNotOptimize(event.text.data());
    count_->add(static_cast<int64_t>(event.tokens.size()));
  }
  void finished(const Finished&) override {}
  void failed(const absl::Status& status) override { TANDEM_CHECK(absl::IsCancelled(status)); }

 private:
  Count* const count_;
};

void token_to_sink(benchmark::State& state) {
  const auto streams = static_cast<size_t>(state.range(0));
  const auto tokenizer = Tokenizer::load(bench::kModel);
  TANDEM_CHECK(tokenizer.ok());
  const auto tokens = (*tokenizer)->encode(bench::kText, false);
  TANDEM_CHECK(tokens.ok());
  Count count;
  double loop_side = 0, text_side = 0;
  int64_t n = 0;
  {
    Worker pool(1);
    std::vector<std::shared_ptr<SequenceListener>> listeners;
    for (size_t i = 0; i < streams; ++i) {
      StreamPlan plan;
      plan.tokenizer = *tokenizer;
      auto made =
          request_streams(&pool, std::move(plan), 1, std::make_shared<CountingSink>(&count), [] {});
      made.front()->on_admitted();
      listeners.push_back(std::move(made.front()));
    }
    const double all_before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double own_before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    size_t at = 0;
    for (auto _ : state) {
      count.expect(static_cast<int64_t>(streams));
      const double before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
      for (size_t i = 0; i < streams; ++i) {
        Emitted token;
        token.token = (*tokens)[(at + i) % tokens->size()];
        listeners[i]->on_tokens({&token, 1});
      }
      loop_side += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
      count.wait();
      ++at;
      n += static_cast<int64_t>(streams);
    }
    text_side = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - all_before -
                (cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - own_before);
    SequenceEnd end;
    end.status = absl::CancelledError("the benchmark is over");
    for (const auto& listener : listeners) listener->on_end(end);
  }
  const auto tokens_made = static_cast<double>(n);
  state.counters["loop_side"] = loop_side / tokens_made;
  state.counters["text_side"] = text_side / tokens_made;
}
BENCHMARK(token_to_sink)->ArgName("streams")->Arg(1)->Arg(64)->Arg(256)->Arg(1000);

}  // namespace
}  // namespace tandem
