// A model as the loop is told of it.
#pragma once

#include "engine/base/ids.h"

namespace tandem {

struct ModelSeries;  // metrics.h

// A model that casts may name.
struct LoopModel {
  ModelId id;
  DeviceId device;
  ModelSeries* series = nullptr;  // may be null; outlives the model
  bool prefix_cache = true;
  ModelId replica_of;  // of which model this is a replica; invalid: none
};

}  // namespace tandem
