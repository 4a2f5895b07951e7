// A model and its settings, for the loop.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/ids.h"

namespace tandem {

struct ModelSeries;    // metrics.h
class PrefixListener;  // cache/prefix_listener.h

// A model that casts may name.
struct LoopModel {
  ModelId id;
  DeviceId device;
  ModelSeries* series = nullptr;  // may be null; outlives the model
  bool prefix_cache = true;
  PrefixListener* prefix_listener = nullptr;  // may be null; outlives the model
  std::string name;                           // for the listener, as the next
  uint16_t instance = 0;                      // differs from that of earlier models
  ModelId replica_of;                         // the model that this one replicates; invalid: none
};

}  // namespace tandem
