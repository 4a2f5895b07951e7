// Copies host arrays to memory that kernels can read.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/backend/torch/queue/queue.h"

namespace tandem {

// Without a queue, kernels read the arrays themselves, which must outlive the batch. With one, the
// arrays are gathered in a host area and copied at once.
class Staging {
 public:
  // areas: of the host, used in turn: the number of batches that can be in flight
  explicit Staging(Queue* queue, int areas = 1)
      : queue_(queue), areas_(static_cast<size_t>(areas)) {}

  // Starts a batch with arrays of at most `bytes` in total, including up to 15 per array for
  // alignment. REQUIRES: the queue has finished the last batch in this area; all batches, if
  // `bytes` grows
  void begin(size_t bytes);

  // The array for the kernels of this batch. Its contents are valid after upload().
  template <class T>
  const T* place(const std::vector<T>& array) {
    if (queue_ == nullptr || array.empty()) return array.data();
    const void* const from = static_cast<const void*>(array.data());
    return reinterpret_cast<const T*>(place_bytes(from, array.size() * sizeof(T)));
  }

  void upload();

 private:
  const std::byte* place_bytes(const void* data, size_t bytes);

  Queue* queue_;
  std::vector<std::shared_ptr<std::byte>> areas_;  // [capacity_] of the host; null: not used yet
  size_t area_ = 0;
  std::shared_ptr<std::byte> device_;  // [capacity_]
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace tandem
