// Cost of one step of 256 streams with a repetition penalty, by length of their texts: on the loop
// thread (lowering the passes to works) and on the device thread (answering the works' reads).
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "engine/sampling/readout.h"
#include "engine/sched/flight.h"

namespace tandem {
namespace {

constexpr int kStreams = 256;
constexpr int kVocab = 32'000;
constexpr int kSteps = 50;

// Zipf-like: about 1,500 distinct tokens in a text of 8,192.
Token word(std::mt19937& rng) {
  const double u = std::uniform_real_distribution<double>()(rng);
  return static_cast<Token>(std::pow(kVocab, 0.85 * u)) - 1;
}

struct Stream {
  Stream(CacheId id, ModelPools* pools) : cache(id, pools) {}
  // Submits a pass as SequencePasses does.
  void fly(int tokens, bool reads, const std::shared_ptr<const Processors>& penalty,
           std::mt19937& rng) {
    flight.pass.clear();
    flight.pass.stage = {cache.id(), 1};
    for (int i = 0; i < tokens; ++i) flight.pass.add.chain(token_in(word(rng)));
    if (reads) {
      Read read;
      read.rows = {static_cast<Row>(tokens) - 1};
      read.draw = true;
      read.warp.processors = penalty;
      flight.pass.reading(std::move(read));
    }
    flight.id = 1;
    flight.cache = &cache;
    cache.reserve(cache.rows() + tokens, 1);
    prepare(flight);
    cache.append(1, flight.pass.add);
  }

  SequenceCache cache;
  PassFlight flight;
  Work work;
};

void BM_PenaltyStep(benchmark::State& state) {
  using std::chrono::steady_clock;
  const auto rows = static_cast<int>(state.range(0));
  ModelShape shape;
  shape.layers = 1;
  std::vector<Move> log;
  ModelPools pools(ModelId(0), shape, {16, int64_t{kStreams} * (rows / 16 + kSteps), 0, 0}, &log,
                   false);
  Processors p;
  p.repetition_penalty = 1.1F;
  p.prompt_tokens = rows;
  const auto penalty = std::make_shared<const Processors>(p);
  std::mt19937 rng(1);
  std::deque<Stream> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.emplace_back(CacheId(i), &pools).fly(rows, false, penalty, rng);
  }
  std::vector<float> model(kVocab);
  for (float& x : model) x = std::normal_distribution<float>(0, 3)(rng);
  std::vector<float> logits;
  RowReader reader(nullptr);
  double loop = 0, device = 0;
  const auto step = [&] {
    for (Stream& s : streams) s.fly(1, true, penalty, rng);
    const auto begin = steady_clock::now();
    for (Stream& s : streams) lower(s.flight, 1, &s.work);
    loop += std::chrono::duration<double>(steady_clock::now() - begin).count();
    for (Stream& s : streams) {
      logits = model;
      const auto start = steady_clock::now();
      reader.begin(s.work);
      const absl::Status status = reader.read(s.work.outputs[0], logits, s.work.past);
      if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
      benchmark::DoNotOptimize(reader.take());
      device += std::chrono::duration<double>(steady_clock::now() - start).count();
    }
  };
  step();  // the first pass of a sequence counts its prompt
  loop = device = 0;
  for (auto _ : state) step();
  const auto mean = [](double seconds) {
    return benchmark::Counter(1e6 * seconds, benchmark::Counter::kAvgIterations);
  };
  state.counters["loop_us"] = mean(loop);
  state.counters["device_us"] = mean(device);
}
BENCHMARK(BM_PenaltyStep)
    ->Arg(256)
    ->Arg(2048)
    ->Arg(8192)
    ->Iterations(kSteps)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tandem
