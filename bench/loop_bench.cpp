// The cost of the scheduler's loop per token: a round of many sequences on a device that takes no
// time.
//
//   scripts/build release bench_loop && build/release/bin/bench_loop
//
// One iteration is one round: every sequence draws a token, emits it, reserves, submits its next
// pass, and all passes are batched, lowered and launched. The device returns a constant at once, so
// only the scheduler's single thread is measured. Sequences have distinct prompts, so they share no
// pages. They start over after growing from 7/8 to 9/8 of `context` rows; their prefills are not
// measured.
//
// trace: 1 where every sequence records its passes. per_token: time. allocations: calls of operator
// new per token.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/decode/autoregressive.h"
#include "engine/sched/loop.h"

namespace {
int64_t allocations = 0;  // single-threaded
}

void* operator new(size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tandem {
namespace {

constexpr Token kAnswer = 7;
constexpr int kPageRows = 16;

// Returns the same token for every output, when the benchmark completes a batch.
class IdleBackend final : public Backend {
 public:
  explicit IdleBackend(int64_t pages) {
    shape_.name = "idle";
    shape_.vocab_size = 32;
    shape_.layers = 4;
    shape_.hidden_size = 1;
    shape_.max_positions = 1 << 30;
    pool_ = {kPageRows, pages, 0};
  }
  const ModelShape& shape(ModelId) const override { return shape_; }
  const PoolSize& pool(ModelId) const override { return pool_; }
  void launch(const Batch& batch, Done done) override {
    result_ = BatchResult();
    result_.works.reserve(batch.works.size());
    for (const Work& work : batch.works) {
      WorkResult& answer = result_.works.emplace_back();
      answer.readout.row.resize(work.outputs.size());
      for (Out& out : answer.readout.row) out.token = out.argmax = kAnswer;
    }
    done_ = std::move(done);
  }
  void finish() {
    if (const Done done = std::exchange(done_, nullptr)) done(std::move(result_));
  }

 private:
  ModelShape shape_;
  PoolSize pool_;
  BatchResult result_;
  Done done_;
};

class CountingListener final : public SequenceListener {
 public:
  int64_t tokens = 0;

  void on_admitted() override {}
  void on_tokens(std::span<Emitted> more) override { tokens += static_cast<int64_t>(more.size()); }
  void on_end(const SequenceEnd& end) override {
    TANDEM_CHECK(end.status.ok() || absl::IsCancelled(end.status));
  }
};

void round_of_sequences(benchmark::State& state) {
  const auto sequences = static_cast<int>(state.range(0));
  const auto context = static_cast<int>(state.range(1));
  const bool trace = state.range(2) != 0;
  const int prompt = context - context / 8, rounds_each = context / 4;
  SteadyClock clock;
  Metrics metrics;
  // Capacity for all sequences at full length, and the same for the prefix cache.
  IdleBackend backend(int64_t{2} * sequences * (context + context / 4) / kPageRows);
  LoopOptions options;
  options.limits.max_running = sequences;
  options.limits.max_waiting = sequences;
  options.limits.max_waiting_tokens = int64_t{1} << 40;
  options.limits.step_rows =
      sequences * context;  // all prefills in one step, so that all sequences stay in step
  options.limits.prefill_chunk_rows = context;
  metrics.series.emplace_back();
  Loop loop(options, &clock, {&backend}, {{ModelId(0), DeviceId(0)}}, &metrics);
  const auto listener = std::make_shared<CountingListener>();
  RequestId id = 0;
  // Runs all sequences up to their first tokens.
  const auto start = [&] {
    while (loop.live() > 0) {
      if (!loop.step()) backend.finish();
    }
    for (int i = 0; i < sequences; ++i) {
      SequenceSpec spec;
      spec.id = ++id;
      for (int k = 0; k < prompt; ++k) {  // the id in base 16, repeated
        spec.prompt.push_back(static_cast<Token>(id >> (4 * (k % 8)) & 15));
      }
      spec.method = autoregressive;
      spec.cast = make_cast({{Role::kLarge, ModelId(0), 0}});
      spec.stops.max_new_tokens = rounds_each + 2;
      spec.series = &metrics.series.front();
      spec.submitted = clock.now();
      spec.listener = listener;
      spec.trace = trace;
      loop.submit(std::move(spec));
    }
    listener->tokens = 0;
    loop.step();
    while (listener->tokens < sequences) {
      backend.finish();
      loop.step();
    }
  };
  start();
  int64_t rounds = 0, allocated = 0;
  for (auto _ : state) {
    const int64_t before = allocations;
    backend.finish();
    loop.step();
    allocated += allocations - before;
    if (++rounds % rounds_each == 0) {
      state.PauseTiming();
      start();
      state.ResumeTiming();
    }
  }
  const double tokens = static_cast<double>(rounds) * sequences;
  state.counters["per_token"] =
      benchmark::Counter(tokens, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["allocations"] = static_cast<double>(allocated) / tokens;
  loop.stop_all(absl::CancelledError("the benchmark is over"));
  while (loop.live() > 0) {
    if (!loop.step()) backend.finish();
  }
}
BENCHMARK(round_of_sequences)
    ->ArgNames({"sequences", "context", "trace"})
    ->ArgsProduct({{1, 16, 64, 256}, {512}, {0, 1}})
    ->Args({256, 4000, 0})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem
