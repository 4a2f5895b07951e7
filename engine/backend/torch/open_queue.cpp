#include "engine/backend/torch/open_queue.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#ifdef TANDEM_CUDA
#include "engine/backend/torch/cuda/stream.h"
#endif

namespace tandem {

absl::StatusOr<OpenedQueue> open_queue(const DeviceConfig& config, TorchShared& shared) {
  OpenedQueue opened;
  if (shared.make_queue()) {
    opened.queue = shared.make_queue()(config);
    return opened;
  }
  if (config.kind == DeviceKind::kCpu) return opened;
#ifdef TANDEM_CUDA
  const int device = config.index;
  TANDEM_RETURN_IF_ERROR(cuda::check_device(device));
  opened.queue = cuda::open_queue(device);
  for (const int other : shared.cuda_devices_before(device)) {
    const bool reads = cuda::reads_memory_of(device, other);
    const bool is_read = cuda::reads_memory_of(other, device);
    absl::StrAppend(
        &opened.peers, opened.peers.empty() ? "" : "; ", "cuda:", device, " and cuda:", other, ": ",
        reads && is_read ? "each reads the other's memory" : "copies go through the host's memory");
  }
  return opened;
#else
  return absl::NotFoundError(
      absl::StrCat("device: ", config.name(), "; allowed: cpu (this build has no CUDA)"));
#endif
}

}  // namespace tandem
