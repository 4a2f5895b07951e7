// Many seeds of the simulation. TANDEM_SEED=n replays one, TANDEM_SEEDS=n runs so many.
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
// With sources and without, with replicas and without.
constexpr uint64_t kFirst = test::kSanitized ? kFirstWithReplicas - 150 : 0;

// Devices only know of requests that run; those that wait for pages or readers have no pass there.
bool possible(Kind kind, Phase phase, Event event) {
  if (kind == Kind::kBeam && phase == Phase::kDecoding)
    return false;  // all its tokens come at once
  // Its pools must hold all its beams, so it seldom waits for pages: the table tells how often.
  if (kind == Kind::kBeam && phase == Phase::kPaused) return false;
  // Nor do these, whose prompts are short; and few requests see the server end.
  if (kind == Kind::kEmbedded && phase == Phase::kPaused && event == Event::kShutdown) return false;
  switch (event) {
    case Event::kDeviceError:
    case Event::kNan:
    case Event::kNoMemory:
    case Event::kSlowPass:
    case Event::kDeviceLost:  // whoever waits for admission has the other replicas
      return phase == Phase::kPrefill || phase == Phase::kDecoding;
    case Event::kEviction:
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
  if (seeds < 8000) return;  // enough to meet them all
  // Every method was hit by every event in every state in which it can be.
  for (int k = 0; k < kKinds; ++k) {
    for (int p = 0; p < kPhases; ++p) {
      for (int e = 0; e < kEvents; ++e) {
        const auto kind = static_cast<Kind>(k);
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
