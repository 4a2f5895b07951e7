// A deterministic simulation of the engine: everything that happens follows from one seed.
//
// The real loop, batcher, caches and methods run on one thread over fake devices on virtual time. A
// phase with faults (cancels, deadlines, time limits, device errors, NaN rows, lack of memory, slow
// passes) is followed by a quiet one in which everything must finish. Invariants of RELIABILITY.md
// are checked while it runs; a broken one is a message that names the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::simulation {

// What happened, summed up over seeds: a run whose faults never strike proves nothing.
struct Coverage {
  int64_t requests = 0;
  int64_t answered = 0;  // OK and complete
  int64_t cut = 0;       // OK, ended by time limit or cancel
  int64_t cancelled = 0;
  int64_t deadlines = 0;
  int64_t device_failures = 0;
  int64_t refused = 0;
  int64_t preemptions = 0;
  int64_t batches = 0;
  int64_t out_of_memory = 0;

  Coverage& operator+=(const Coverage& o);
  std::string to_string() const;
};

struct Report {
  std::vector<std::string> broken;  // invariants; empty: all held
  Coverage coverage;
  uint64_t trace = 0;  // hash of everything that was heard, and when
};

Report simulate(uint64_t seed);

}  // namespace tandem::simulation
