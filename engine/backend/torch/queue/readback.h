// Copies from the device to the host.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>

#include "engine/backend/torch/queue/queue.h"

namespace tandem {

class Readback {
 public:
  explicit Readback(Queue* queue) : queue_(queue) {}

  // Queues a copy from device memory to the returned host memory, which is valid after
  // Queue::synchronize(), until the next call. REQUIRES: a queue, which has finished the last copy
  std::byte* bring(const void* from, size_t bytes) {
    if (bytes > capacity_) {
      capacity_ = 0;  // if the allocation throws
      host_ = nullptr;
      host_ = queue_->host_memory(std::bit_ceil(bytes));
      capacity_ = std::bit_ceil(bytes);
    }
    queue_->copy(host_.get(), from, bytes);
    return host_.get();
  }

 private:
  Queue* queue_;
  std::shared_ptr<std::byte> host_;  // [capacity_]
  size_t capacity_ = 0;
};

}  // namespace tandem
