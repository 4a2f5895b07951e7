#include "engine/backend/torch/staging.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace tandem {

void Staging::begin(size_t bytes) {
  used_ = 0;
  if (device_.is_cpu()) return;
  const auto capacity = pinned_.defined() ? static_cast<size_t>(pinned_.numel()) : 0;
  if (bytes <= capacity) return;
  const auto size = static_cast<int64_t>(std::max(bytes, 2 * capacity));
  pinned_ = at::empty({size}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  on_device_ = at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device_));
}

const void* Staging::place_bytes(const void* data, size_t bytes) {
  TORCH_CHECK(used_ + bytes <= static_cast<size_t>(pinned_.numel()), "staging area too small");
  std::memcpy(static_cast<std::byte*>(pinned_.mutable_data_ptr()) + used_, data, bytes);
  const void* place = static_cast<const std::byte*>(on_device_.const_data_ptr()) + used_;
  used_ += (bytes + 15) / 16 * 16;
  return place;
}

void Staging::upload() {
  if (device_.is_cpu() || used_ == 0) return;
  const auto n = static_cast<int64_t>(used_);
  on_device_.narrow(0, 0, n).copy_(pinned_.narrow(0, 0, n), /*non_blocking=*/true);
}

}  // namespace tandem
