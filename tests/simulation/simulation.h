// A deterministic simulation of the engine: a seed determines all events.
//
// The real loop, batcher, caches and methods run on one thread over fake devices on virtual time. A
// phase with faults (cancels, deadlines, time limits, stalled readers, device errors, NaN rows,
// lack of memory, slow passes, shutdown) precedes a quiet phase in which all requests must end. The
// invariants of docs/reliability.md are checked at each step (watch.h, heard.h). A violation is a
// message with the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/coverage.h"

namespace tandem::simulation {

struct Report {
  std::vector<std::string> broken;  // violated invariants
  Coverage coverage;
  uint64_t trace = 0;  // hash of all observable events and times
};

Report simulate(uint64_t seed);

}  // namespace tandem::simulation
