// The memory of one model's cache on one device: KV pages of all layers, and frontier rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/backend/torch/platform.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/pass/backend.h"

namespace tandem {

// The properties of a model that a pool depends on.
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
  // [layers, pages, kv_heads, page_rows, head_dim], keys after RoPE. With
  // Platform::keys_by_dimension() the last two dimensions of keys are swapped (cpu/kv.h).
  at::Tensor keys, values;
  std::vector<at::Tensor> layer_keys, layer_values;  // the same by layer
  at::Tensor frontier;                               // [frontier_pages * page_rows, hidden_size]
  // Hidden rows that passes write for other passes, and the pass that wrote each; 0: none. A pass
  // on another device queue reads a row only after the batch that wrote it is done.
  at::Tensor hidden;  // [PoolSize::values, hidden_size]
  std::unique_ptr<std::atomic<TicketId>[]> written_by;

  // Memory of the device queue that runs the model and outlives this; null: the host's, whose pages
  // are untouched until used. Zeroed on the queue: kernels that read whole pages multiply unwritten
  // rows by a weight of 0, and 0 * NaN is NaN. more_pages: of prompts and scratch, after those of
  // `size`, which the scheduler manages. Throws c10::OutOfMemoryError.
  KvPool(const KvGeometry& geometry, const PoolSize& size, at::Device device,
         int64_t more_pages = 0, const DeviceQueue* device_queue = nullptr);

  int64_t pages() const { return values.size(1); }                   // all
  at::Tensor frontier_rows(int64_t page, int slot, int rows) const;  // [rows, hidden_size]
  // [layers, kv_heads, rows, head_dim]
  at::Tensor kv_rows(bool of_keys, int64_t page, int slot, int rows, int layers) const;
  // Copies a page, on the device queue, to or from `host`: for each layer its keys and its values,
  // as they lie in the pool. host: [KvGeometry::page_bytes()], until the queue is synchronized
  void copy_page(int64_t page, std::byte* host, bool to_host) const;
  // Writes rows to the pages from `first` on, on the device queue. keys, values: [layers or more,
  // rows, kv_heads, head_dim]
  void fill(int64_t first, const at::Tensor& row_keys, const at::Tensor& row_values);
};

// The first page of the prompts of a model's adapter, which follow the scheduler's pages. adapter:
// the number of adapters for the end of all prompts.
int64_t first_prompt_page(const ModelShape& shape, const PoolSize& size, size_t adapter);

}  // namespace tandem
