// Which of the pending passes a device queue runs next, and how much of each: a pure function.
//
// Decodes, verifications and trees go whole; a long chain prefix (a prefill) is cut into chunks. A
// quarter of the row budget belongs to prefills when there are any, so a stream of decodes does not
// starve them, and a chunk is never longer than `chunk_rows`, so a long prompt does not starve
// decodes.
//
// Who goes first where not all fit: by priority, then the client that was served least
// (fairness.h), where each pass counts for those behind it of the same client; then the pass that
// waits longest. So the step is divided fairly too, and as a pass that ran comes back as a younger
// one, everything has its turn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

struct Candidate {
  int index = 0;  // the caller's
  ModelId model;
  int fixed_rows = 0;  // rows that run with the first chunk whatever its size (frontier)
  int rows = 0;        // added rows not run yet
  int splittable = 0;  // of these, leading rows that may run in an earlier chunk
  int priority = 0;
  uint64_t order = 0;   // smaller: has waited longer
  uint64_t client = 0;  // Account::number()
  double served = 0;    // Account::served()
  double cost = 0;      // by what `served` will grow when it has run

  int total() const { return fixed_rows + rows; }
};

struct BatchLimits {
  int step_rows = 512;  // a pass that cannot be split may exceed it, alone
  int chunk_rows = 256;
  int works = 256;
};

struct Picked {
  int index = 0;
  int count = 0;  // added rows to run now
};

// All of one model: the first in turn after `last` that has candidates. Not empty when `candidates`
// is not.
std::vector<Picked> pick_batch(std::span<const Candidate> candidates, ModelId last,
                               const BatchLimits& limits);

}  // namespace tandem
