#include "engine/backend/torch/queue/staging.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"

namespace tandem {

void Staging::begin(size_t bytes) {
  used_ = 0;
  if (queue_ == nullptr) return;
  area_ = (area_ + 1) % areas_.size();
  if (bytes > capacity_) {
    const size_t size = std::max(bytes, 2 * capacity_);
    capacity_ = 0;  // if an allocation throws
    for (auto& area : areas_) area = nullptr;
    device_ = nullptr;
    device_ = queue_->device_memory(size);
    capacity_ = size;
  }
  if (areas_[area_] == nullptr) areas_[area_] = queue_->host_memory(capacity_);
}

const std::byte* Staging::place_bytes(const void* data, size_t bytes) {
  TANDEM_CHECK(used_ + bytes <= capacity_);
  std::memcpy(areas_[area_].get() + used_, data, bytes);
  const std::byte* const place = device_.get() + used_;
  used_ += (bytes + 15) / 16 * 16;
  return place;
}

void Staging::upload() {
  if (queue_ != nullptr && used_ > 0) {
    queue_->copy(device_.get(), areas_[area_].get(), std::min(used_, capacity_));
  }
}

}  // namespace tandem
