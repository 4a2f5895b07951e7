// Numbers of the device where the host can read them.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>

#include "engine/backend/torch/queue/queue.h"

namespace tandem {

class Readback {
 public:
  explicit Readback(Queue* queue) : queue_(queue) {}

  // Copies from the device's memory to where the result says, until the next call: it is there
  // after Queue::synchronize(). REQUIRES: a queue, which has come behind the last call.
  std::byte* bring(const void* from, size_t bytes) {
    if (bytes > capacity_) {
      capacity_ = 0;  // in case memory runs out below
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
