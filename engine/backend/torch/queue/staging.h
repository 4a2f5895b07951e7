// Host arrays where kernels can read them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/backend/torch/queue/queue.h"

namespace tandem {

// Without a queue the arrays themselves, which must outlive the batch. Else they are gathered in
// host memory of a fixed place and go over in one copy.
class Staging {
 public:
  // areas: of the host, taken in turn, so that so many batches may be under way
  explicit Staging(Queue* queue, int areas = 1)
      : queue_(queue), areas_(static_cast<size_t>(areas)) {}

  // Starts a batch with arrays of at most `bytes` together; each may take up to 15 more.
  // REQUIRES: the queue has come to the end of the batch that had this area before; of all, where
  // `bytes` are more than ever.
  void begin(size_t bytes);

  // Where the kernels of this batch find the array; its contents are there after upload().
  template <class T>
  const T* place(const std::vector<T>& array) {
    if (queue_ == nullptr || array.empty()) return array.data();
    return reinterpret_cast<const T*>(place_bytes(array.data(), array.size() * sizeof(T)));
  }

  void upload();

 private:
  const std::byte* place_bytes(const void* data, size_t bytes);

  Queue* queue_;
  std::vector<std::shared_ptr<std::byte>> areas_;  // [capacity_] of the host; null: not needed yet
  size_t area_ = 0;
  std::shared_ptr<std::byte> device_;  // [capacity_]
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace tandem
