// The bytes of one model's cache on one device: KV pages of all layers, and frontier rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/backend/torch/platform.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/pass/backend.h"

namespace tandem {

// What a pool must know of its model.
struct KvGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int hidden_size = 0;
  at::ScalarType kv_type = at::kFloat;
  at::ScalarType hidden_type = at::kFloat;

  int64_t page_bytes(int page_rows) const;
  int64_t frontier_page_bytes(int page_rows) const;
  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

struct KvPool {
  const Platform* platform;
  KvGeometry geometry;
  PoolSize size;
  const DeviceQueue* device_queue;
  // [layers, pages, kv_heads, page_rows, head_dim], keys after RoPE; on CPU the last two dimensions
  // of keys are the other way round (cpu/kv.h).
  at::Tensor keys, values;
  std::vector<at::Tensor> layer_keys, layer_values;  // the same by layer
  at::Tensor frontier;                               // [frontier_pages * page_rows, hidden_size]
  // Rows that passes leave for others, and which pass left each; 0: none. A pass on another device
  // queue reads a row only when the batch that left it is done.
  at::Tensor hidden;  // [PoolSize::values, hidden_size]
  std::unique_ptr<std::atomic<TicketId>[]> written_by;

  // Of the device queue that runs the model, which outlives it; null: the host's. Zeros, when the
  // device queue has come there: a kernel that takes whole pages multiplies what no row has written
  // by a weight of 0, and NaN stays NaN. In the host's memory nothing is touched until it is used.
  // more_pages: of prompts and scratch, behind those of `size`, which the scheduler knows. Throws
  // c10::OutOfMemoryError.
  KvPool(const KvGeometry& geometry, const PoolSize& size, at::Device device,
         int64_t more_pages = 0, const DeviceQueue* device_queue = nullptr);

  int64_t pages() const { return values.size(1); }                   // all
  at::Tensor frontier_rows(int64_t page, int slot, int rows) const;  // [rows, hidden_size]
  // [layers, kv_heads, rows, head_dim]
  at::Tensor kv_rows(bool of_keys, int64_t page, int slot, int rows, int layers) const;
  // Writes rows into pages `first` and behind it, on the device queue. keys, values: [layers or
  // more, rows, kv_heads, head_dim]
  void fill(int64_t first, const at::Tensor& row_keys, const at::Tensor& row_values);
};

// Where the prompts of a model's adapter lie: the first of their pages, behind the scheduler's.
// adapter: one behind the last one for the end of all.
int64_t first_prompt_page(const ModelShape& shape, const PoolSize& size, size_t adapter);

}  // namespace tandem
