// A large model and a small one: the roles of requests that use both, and boxes that hold them.
#pragma once

#include <vector>

#include "tests/engine/sched/kit.h"

namespace tandem::test {

inline const AdapterId kAdapter(3);  // of masks: fake devices know those of any

// Model 0 is large, model 1 small.
inline std::vector<CastRole> two_models() {
  return {{Role::kLarge, ModelId(0), 0}, {Role::kSmall, ModelId(1), 0}};
}
// The first `layers` layers of the large model are the small one.
inline std::vector<CastRole> early_exit(int layers) {
  return {{Role::kLarge, ModelId(0), 0}, {Role::kSmall, ModelId(0), layers}};
}

// The large model on device 0, the small one on `small_device`; what runs together follows from the
// seed.
inline BoxOptions pair_of(uint64_t seed, int small_device) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(2, 2);
  o.models[1].device = small_device;
  o.shuffle = seed;
  o.limits.prefill_chunk_rows = 1 + static_cast<int>(seed % 7);
  o.limits.step_rows = 4 + static_cast<int>(seed % 23);
  return o;
}

}  // namespace tandem::test
