// A change of a model's pools while the loop runs, such as pages that are restored.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "engine/base/ids.h"
#include "engine/cache/model_pools.h"

namespace tandem {

struct PoolEdit {
  ModelId model;
  // Called once, on the loop thread, unless the device is lost. It may log moves.
  std::function<void(ModelPools&)> edit;
  // Called once, on the loop thread, when these moves are made. UNAVAILABLE: the device is lost;
  // other errors are those of a batch.
  std::function<void(absl::Status)> done;
};

}  // namespace tandem
