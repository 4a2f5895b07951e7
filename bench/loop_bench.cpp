// What the loop costs for each token: a round of many sequences, with a device that takes no time.
//
//   scripts/build release bench_loop && build/release/bin/bench_loop
//
// One iteration is one round: every sequence draws a token, emits it, reserves, submits its next
// pass, and all passes are batched, lowered and launched. The device answers at once with a
// constant, so all that is measured is the scheduler's own work on its one thread.
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/decode/autoregressive.h"
#include "engine/sched/loop.h"

namespace tandem {
namespace {

constexpr Token kAnswer = 7;
constexpr int kPageRows = 16;

// Answers every output with the same token, when the benchmark says so.
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

class NoListener final : public SequenceListener {
 public:
  void on_admitted() override {}
  void on_tokens(std::vector<Emitted>) override {}
  void on_end(const SequenceEnd& end) override {
    TANDEM_CHECK(end.status.ok() || absl::IsCancelled(end.status));
  }
};

void round_of_sequences(benchmark::State& state) {
  const auto sequences = static_cast<int>(state.range(0));
  // Long enough never to end: rounds are made as long as the benchmark wants them.
  constexpr int kTokens = 1 << 20;
  constexpr int kPages = 1 << 16;
  SteadyClock clock;
  Metrics metrics;
  IdleBackend backend(kPages);
  LoopOptions options;
  options.limits.max_running = sequences;
  options.limits.step_rows = 4 * sequences;
  metrics.series.emplace_back();
  Loop loop(options, &clock, {&backend}, {{ModelId(0), DeviceId(0)}}, &metrics);
  const auto listener = std::make_shared<NoListener>();
  // Sequences start over when they have come to this length, so pages suffice for ever.
  const int length = std::min<int>(kTokens, kPages / sequences * kPageRows - 2 * kPageRows);
  RequestId id = 0;
  const auto submit = [&] {
    SequenceSpec spec;
    spec.id = ++id;
    spec.prompt = {1, 2, 3, 4};
    spec.method = autoregressive;
    spec.roles = {{Role::kLarge, ModelId(0), 0}};
    spec.stops.max_new_tokens = length;
    spec.series = &metrics.series.front();
    spec.submitted = clock.now();
    spec.listener = listener;
    loop.submit(std::move(spec));
  };
  for (int i = 0; i < sequences; ++i) submit();
  loop.step();
  TANDEM_CHECK(loop.live() == sequences && loop.device_busy());
  int64_t rounds = 0;
  for (auto _ : state) {
    backend.finish();
    loop.step();
    if (++rounds % (length - 1) == 0) {
      state.PauseTiming();
      while (loop.live() > 0) {
        backend.finish();
        loop.step();
      }
      for (int i = 0; i < sequences; ++i) submit();
      loop.step();
      state.ResumeTiming();
    }
  }
  state.counters["per_token"] =
      benchmark::Counter(static_cast<double>(rounds) * sequences,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  loop.stop_all(absl::CancelledError("the benchmark is over"));
  while (loop.live() > 0) {
    if (!loop.step()) backend.finish();
  }
}
BENCHMARK(round_of_sequences)->Arg(1)->Arg(16)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem
