#include "engine/backend/torch/open_queue.h"

#include "engine/base/status.h"

namespace tandem {

absl::StatusOr<OpenedQueue> open_queue(const DeviceConfig& config, TorchShared& shared) {
  TANDEM_ASSIGN_OR_RETURN(const Platform* platform, find_platform(config));
  if (!shared.make_queue()) return platform->open_queue(config.index, shared);
  OpenedQueue opened;
  opened.queue = shared.make_queue()(config);
  return opened;
}

}  // namespace tandem
