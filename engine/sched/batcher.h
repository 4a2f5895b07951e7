// Selects the pending passes of the next batch, and how many rows of each. Pure functions.
//
// Decodes, verifications and trees run whole; a long chain prefix (a prefill) is divided into
// chunks. A quarter of the row budget is reserved for prefills, so decodes do not starve them. A
// chunk has at most `chunk_rows` rows, so a long prompt does not starve decodes.
//
// If not all passes fit, the order is: priority, then the least served client (fairness.h), then
// the longest waiting pass. A pass counts as service for later passes of its client, so clients
// share the batch fairly. A sequence's next pass is younger, so no pass waits forever.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

struct Candidate {
  int index = 0;  // chosen by the caller
  ModelId model;
  int fixed_rows = 0;   // rows that run with the first chunk, whatever its size (frontier)
  int rows = 0;         // added rows not run yet
  int splittable = 0;   // of these, leading rows that may run in an earlier chunk
  bool drafts = false;  // its sequence's next pass of the large model waits for it
  int priority = 0;
  uint64_t order = 0;   // smaller: has waited longer
  uint64_t client = 0;  // Account::number()
  double served = 0;    // Account::served()
  double cost = 0;      // added to `served` when it has run

  int total() const { return fixed_rows + rows; }
};

struct BatchLimits {
  int step_rows = 512;  // exceeded only by a pass that cannot be divided, alone in its batch
  int chunk_rows = 256;
  int works = 256;
  bool drafts_first = true;
};

struct Picked {
  int index = 0;
  int count = 0;  // added rows to run now
};

// All of one model: the next one with candidates after `last`, in cyclic order, or with
// drafts_first the next one whose candidates draft. Not empty unless `candidates` is.
std::vector<Picked> pick_batch(std::span<const Candidate> candidates, ModelId last,
                               const BatchLimits& limits);

}  // namespace tandem
