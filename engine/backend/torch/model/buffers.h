// Buffers for rows, reused from batch to batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <bit>
#include <cstdint>

#include "engine/backend/torch/queue/queue.h"

namespace tandem {

// A tensor in the queue's memory, on the device of `options`; queue null: LibTorch's memory.
inline at::Tensor empty_on(Queue* queue, at::IntArrayRef shape, const at::TensorOptions& options) {
  if (queue == nullptr) return at::empty(shape, options);
  int64_t bytes = static_cast<int64_t>(options.dtype().itemsize());
  for (const int64_t n : shape) bytes *= n;
  std::shared_ptr<std::byte> memory = queue->device_memory(static_cast<size_t>(bytes));
  return at::from_blob(memory.get(), shape, [memory](void*) {}, options, options.device());
}

// The rows to reserve when `rows` are needed. There are few sizes, so that buffers rarely move.
inline int64_t row_bucket(int64_t rows) {
  if (rows <= 64) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  return (rows + 63) / 64 * 64;
}

// The number of buffer moves on this thread. Captured work (Queue::capture) holds addresses, and a
// device queue's thread uses only the buffers of its own models.
inline constinit thread_local int64_t row_buffers_moved = 0;

// [rows, width]
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(int64_t width, at::ScalarType type, at::Device device, Queue* queue = nullptr)
      : width_(width), options_(at::TensorOptions().dtype(type).device(device)), queue_(queue) {}

  // The first `rows` rows. Contents are lost when the buffer grows.
  at::Tensor& rows(int64_t rows) {
    if (rows != view_rows_) {
      view_rows_ = -1;  // if the allocation throws
      if (!all_.defined() || all_.size(0) < rows) {
        if (all_.defined()) ++row_buffers_moved;
        view_ = all_ = at::Tensor();  // free first
        all_ = empty_on(queue_, {row_bucket(rows), width_}, options_);
      }
      view_ = all_.narrow(0, 0, rows);
      view_rows_ = rows;
    }
    return view_;
  }

 private:
  int64_t width_ = 0;
  at::TensorOptions options_;
  Queue* queue_ = nullptr;
  at::Tensor all_, view_;
  int64_t view_rows_ = -1;
};

}  // namespace tandem
