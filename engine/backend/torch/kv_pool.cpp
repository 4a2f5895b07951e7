#include "engine/backend/torch/kv_pool.h"

#include <algorithm>
#include <cstring>

#include "engine/backend/torch/model/buffers.h"

namespace tandem {
namespace {

int64_t bytes_of(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }

// Zeroed by the queue, if there is one. The host's memory is untouched until used.
at::Tensor make(at::IntArrayRef shape, const at::TensorOptions& options, Queue* queue) {
  at::Tensor all = empty_on(queue, shape, options);
  if (queue != nullptr) queue->zero(all.mutable_data_ptr(), all.nbytes());
  return all;
}

}  // namespace

int64_t KvGeometry::page_bytes(int page_rows) const {
  return int64_t{2} * layers * kv_heads * page_rows * head_dim * bytes_of(kv_type);
}

int64_t KvGeometry::frontier_page_bytes(int page_rows) const {
  return int64_t{page_rows} * hidden_size * bytes_of(hidden_type);
}

KvPool::KvPool(const KvGeometry& g, const PoolSize& s, at::Device device, int64_t more_pages,
               const DeviceQueue* own)
    : platform(&platform_of(device)), geometry(g), size(s), device_queue(own) {
  const auto kv = at::TensorOptions().dtype(g.kv_type).device(device);
  const int64_t all = s.pages + more_pages;
  Queue* const queue = queue_of(device_queue);
  values = make({g.layers, all, g.kv_heads, s.page_rows, g.head_dim}, kv, queue);
  keys = platform->keys_by_dimension()
             ? make({g.layers, all, g.kv_heads, g.head_dim, s.page_rows}, kv, queue)
             : make(values.sizes(), kv, queue);
  for (int i = 0; i < g.layers; ++i) {
    layer_keys.push_back(keys.select(0, i));
    layer_values.push_back(values.select(0, i));
  }
  const auto rows = kv.dtype(g.hidden_type);
  frontier = make({s.frontier_pages * s.page_rows, g.hidden_size}, rows, queue);
  hidden = make({s.values, g.hidden_size}, rows, queue);
  written_by = std::make_unique<std::atomic<TicketId>[]>(static_cast<size_t>(s.values));
}

at::Tensor KvPool::frontier_rows(int64_t page, int slot, int rows) const {
  return frontier.narrow(0, page * size.page_rows + slot, rows);
}

at::Tensor KvPool::kv_rows(bool of_keys, int64_t page, int slot, int rows, int layers) const {
  at::Tensor pages = (of_keys ? keys : values).narrow(0, 0, layers).select(1, page);
  if (of_keys && platform->keys_by_dimension()) pages = pages.transpose(2, 3);
  return pages.narrow(2, slot, rows);
}

void KvPool::copy_page(int64_t page, std::byte* host, bool to_host) const {
  Queue* const queue = queue_of(device_queue);
  const int64_t block = geometry.page_bytes(size.page_rows) / (2 * geometry.layers);
  for (int64_t layer = 0; layer < geometry.layers; ++layer) {
    for (const at::Tensor* const part : {&keys, &values}) {
      auto* const there =
          static_cast<std::byte*>(part->mutable_data_ptr()) + (layer * pages() + page) * block;
      std::byte* const to = to_host ? host : there;
      const std::byte* const from = to_host ? there : host;
      if (queue != nullptr) {
        queue->copy(to, from, static_cast<size_t>(block));
      } else {
        std::memcpy(to, from, static_cast<size_t>(block));
      }
      host += block;
    }
  }
}

void KvPool::fill(int64_t first, const at::Tensor& row_keys, const at::Tensor& row_values) {
  launch(device_queue, [this, first, row_keys, row_values] {
    const int64_t rows = row_keys.size(1);
    for (int64_t row = 0; row < rows; row += size.page_rows) {
      const int64_t n = std::min<int64_t>(size.page_rows, rows - row);
      const int64_t page = first + row / size.page_rows;
      for (const bool is_keys : {true, false}) {
        const at::Tensor& from = is_keys ? row_keys : row_values;
        kv_rows(is_keys, page, 0, static_cast<int>(n), geometry.layers)
            .copy_(from.narrow(0, 0, geometry.layers).narrow(1, row, n).transpose(1, 2));
      }
    }
  });
}

int64_t first_prompt_page(const ModelShape& shape, const PoolSize& size, size_t adapter) {
  int64_t page = size.pages;
  for (size_t i = 0; i < adapter; ++i) {
    page += (shape.adapters[i].prompt_rows + size.page_rows - 1) / size.page_rows;
  }
  return page;
}

}  // namespace tandem
