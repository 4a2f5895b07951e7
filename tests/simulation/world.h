// Shared state of a simulation: plan, virtual time, loop and event counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/backend/fake/model.h"
#include "engine/base/clock.h"
#include "engine/sched/loop.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/requests.h"
#include "tests/simulation/simulation.h"

namespace tandem::simulation {

struct World {
  explicit World(uint64_t s) : seed(s), plan(make_plan(s)) {}

  void broken(const std::string& what) {
    if (report.broken.size() < 10) {
      report.broken.push_back(absl::StrCat("seed ", seed, ": ", what));
    }
  }
  // A hash of all observable events with their times, to compare runs of the same seed.
  void note(uint64_t what) {
    const auto at = static_cast<uint64_t>(clock.now().time_since_epoch().count());
    report.trace = fake::mix(fake::mix(report.trace, at), what);
  }

  // True: the sequence was placed on this device, among others.
  bool runs_on(const SequenceRun& run, int device) const {
    return run.spec().placed && std::ranges::any_of(run.spec().roles(), [&](const CastRole& r) {
             return plan.device(static_cast<int>(r.model.value)) == device;
           });
  }

  const uint64_t seed;
  const Plan plan;
  VirtualClock clock;
  Metrics metrics;
  std::unique_ptr<Loop> loop;
  Report report;
};

}  // namespace tandem::simulation
