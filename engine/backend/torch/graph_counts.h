// What became of the steps of a model that graphs can run (step_graphs.h).
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

// Since pools were allocated. Every such step is replayed or launched.
struct GraphCounts {
  int64_t captured = 0;  // graphs
  int64_t replayed = 0;  // steps
  int64_t launched = 0;  // steps: the first of a shape, and those of refused shapes
  int64_t refused = 0;   // captures
  std::string reason;    // of the last refusal
};

}  // namespace tandem
