// The cost of drawing a token: a row of logits of a large vocabulary, its warpers, its race.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "engine/sampling/race.h"
#include "engine/sampling/warp.h"

namespace tandem::sampling {
namespace {

constexpr size_t kVocab = 152'064;  // of Qwen 2

std::vector<float> logits() {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(kVocab);
  for (float& x : row) x = normal(rng);
  return row;
}

// 0: temperature alone, all tokens survive; 1: top_k 50; 2: top_p 0.9; 3: min_p 0.05.
Warp warp_of(int64_t setting) {
  Warp w;
  w.temperature = 0.8F;
  if (setting == 1) w.top_k = 50;
  if (setting == 2) w.top_p = 0.9F;
  if (setting == 3) w.min_p = 0.05F;
  return w;
}

void BM_Scan(benchmark::State& state) {
  const std::vector<float> row = logits();
  for (auto _ : state) benchmark::DoNotOptimize(scan(row));
}
BENCHMARK(BM_Scan)->Unit(benchmark::kMicrosecond);

void BM_Warp(benchmark::State& state) {
  const std::vector<float> row = logits();
  const Scan best = scan(row);
  const Warp w = warp_of(state.range(0));
  Scratch scratch;
  for (auto _ : state) benchmark::DoNotOptimize(warp(w, row, best, scratch));
}
BENCHMARK(BM_Warp)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

void BM_Race(benchmark::State& state) {
  const std::vector<float> row = logits();
  Scratch scratch;
  warp(warp_of(state.range(0)), row, scan(row), scratch);
  int position = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(race(scratch.weight, race_key(1, 0, Purpose::kToken, ++position)));
  }
}
BENCHMARK(BM_Race)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::sampling
