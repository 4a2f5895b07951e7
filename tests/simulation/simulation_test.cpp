// Runs the simulation on many seeds. TANDEM_SEED=n replays one; TANDEM_SEEDS=n sets their number.
#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/sanitized.h"
#include "tests/simulation/plan.h"

namespace tandem::simulation {
namespace {

constexpr uint64_t kSeeds = test::kSanitized ? 300 : 14'000;
// With and without encoders, with and without replicas.
constexpr uint64_t kFirst = test::kSanitized ? kFirstWithReplicas - 150 : 0;

// Events of a device need a pass there; requests that wait for pages or readers have none.
bool possible(MethodKind kind, Phase phase, Event event) {
  if (kind == MethodKind::kBeam && phase == Phase::kDecoding)
    return false;  // it emits all its tokens at once
  // The pools must hold all its beams, so it rarely waits for pages; see the table.
  if (kind == MethodKind::kBeam && phase == Phase::kPaused) return false;
  // Requests with few rows rarely wait for pages, and these events affect few requests.
  const bool few_rows = kind == MethodKind::kAr || kind == MethodKind::kConditioned;
  const bool few_requests = event == Event::kShutdown || event == Event::kTimeLimit;
  if (few_rows && phase == Phase::kPaused && few_requests) return false;
  switch (event) {
    case Event::kDeviceError:
    case Event::kNan:
    case Event::kNoMemory:
    case Event::kSlowPass:
    case Event::kDeviceLost:  // waiting requests can use other replicas
      return phase == Phase::kPrefill || phase == Phase::kDecoding;
    case Event::kPreemption:
      return phase == Phase::kPaused || phase == Phase::kHeld;
    case Event::kStall:
      return phase != Phase::kHeld;
    default:
      return true;
  }
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

TEST(Simulation, InvariantsHold) {
  const bool one = std::getenv("TANDEM_SEED") != nullptr;
  const uint64_t first = from_environment("TANDEM_SEED", kFirst);
  const uint64_t seeds = one ? 1 : from_environment("TANDEM_SEEDS", kSeeds);
  const auto start = std::chrono::steady_clock::now();
  Coverage sum;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Report report = simulate(seed);
    for (const std::string& what : report.broken) ADD_FAILURE() << what;
    if (HasFailure()) return;
    sum += report.coverage;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s; %.0f seeds/s\n", sum.summary().c_str(),
              static_cast<double>(seeds) / took.count());
  if (const char* file = std::getenv("TANDEM_COVERAGE_TABLE")) std::ofstream(file) << sum.table();
  if (seeds < 200) return;
  EXPECT_GT(sum.answered, sum.requests / 3);
  for (const int64_t n : {sum.cut, sum.cancelled, sum.deadlines, sum.device_failures, sum.refused,
                          sum.preemptions, sum.batches_behind, sum.reused_tokens, sum.sources}) {
    EXPECT_GT(n, static_cast<int64_t>(seeds / 10));
  }
  if (first + seeds <= kFirstWithReplicas) return;
  const auto replicated = static_cast<int64_t>(first + seeds - std::max(first, kFirstWithReplicas));
  EXPECT_GT(sum.on_replicas, replicated);
  EXPECT_GT(sum.lost, replicated / 4);
  if (seeds < 8000) return;  // too few for all events
  // Every possible event occurred in every state of every method.
  for (int k = 0; k < kKinds; ++k) {
    for (int p = 0; p < kPhases; ++p) {
      for (int e = 0; e < kEvents; ++e) {
        const auto kind = static_cast<MethodKind>(k);
        const auto phase = static_cast<Phase>(p);
        const auto event = static_cast<Event>(e);
        if (!possible(kind, phase, event)) continue;
        EXPECT_GT(sum.hit[static_cast<size_t>(k)][static_cast<size_t>(p)][static_cast<size_t>(e)],
                  0)
            << kind_name(kind) << ", " << phase_name(phase) << ", " << event_name(event);
      }
    }
  }
}

TEST(Simulation, ASeedIsReplayedExactly) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(simulate(seed).trace, simulate(seed).trace) << seed;
  }
  EXPECT_NE(simulate(1).trace, simulate(2).trace);
}

}  // namespace
}  // namespace tandem::simulation
