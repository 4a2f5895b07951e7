// Memory that weights are streamed from, once per batch.
#pragma once

#include <cstddef>
#include <memory>

namespace tandem::cpu {

// Gives back memory of allocate_weights().
struct FreeWeights {
  void operator()(std::byte*) { stretch.reset(); }
  std::shared_ptr<const void> stretch;  // that it lies in
};
using WeightMemory = std::unique_ptr<std::byte, FreeWeights>;

// So many bytes, aligned to 64, that nobody has touched. What a thread asks for in turn lies side
// by side in large pages (a wish to the system): a model's matrices are often smaller than one, and
// of each small page that a processor comes to it has to find out where that is, in a virtual
// machine twice. A stretch of them goes back to the system with the last matrix that lies there.
WeightMemory allocate_weights(size_t bytes);

}  // namespace tandem::cpu
