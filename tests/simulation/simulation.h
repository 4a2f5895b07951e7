// A deterministic simulation of the engine: everything that happens follows from one seed.
//
// The real loop, batcher, caches and methods run on one thread over fake devices on virtual time. A
// phase with faults (cancels, deadlines, time limits, stalled readers, device errors, NaN rows,
// lack of memory, slow passes, shutdown) is followed by a quiet one in which everything must
// finish. The invariants of docs/reliability.md are checked at each step (watch.h, heard.h); a
// broken one is a message that names the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/coverage.h"

namespace tandem::simulation {

struct Report {
  std::vector<std::string> broken;  // invariants; empty: all held
  Coverage coverage;
  uint64_t trace = 0;  // hash of everything that was heard, and when
};

Report simulate(uint64_t seed);

}  // namespace tandem::simulation
