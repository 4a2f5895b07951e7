// Memory for weights, which are streamed once per batch.
#pragma once

#include <cstddef>
#include <memory>

namespace tandem::cpu {

// Deleter for allocate_weights().
struct FreeWeights {
  void operator()(std::byte*) { stretch.reset(); }
  std::shared_ptr<const void> stretch;  // that holds it
};
using WeightMemory = std::unique_ptr<std::byte, FreeWeights>;

// Returns `bytes` bytes, aligned to 64 and not yet touched. Allocations of one thread are placed
// consecutively in huge pages, if the kernel grants them. Matrices are often smaller than a huge
// page, and small pages cost TLB misses, twice as much in virtual machines. A stretch is freed with
// its last matrix.
WeightMemory allocate_weights(size_t bytes);

// The same in a stretch of its own, which is freed with it: for weights that do not stay.
WeightMemory allocate_apart(size_t bytes);

// Whether the stretches of all weights exceed the last-level cache (true if its size is unknown).
// Then a pass reads weights from memory.
bool weights_exceed_caches();

}  // namespace tandem::cpu
