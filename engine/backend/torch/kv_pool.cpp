#include "engine/backend/torch/kv_pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#ifdef TANDEM_CUDA
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/lane.h"
#endif

namespace tandem {
namespace {

int64_t bytes_of(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }

absl::Status check_place(const Move::Place& place, const Move& move, const KvPool& pool) {
  const int64_t pages = move.store == Store::kKv ? pool.size.pages : pool.size.frontier_pages;
  if (!place.page.valid() || place.page.value >= pages) {
    return absl::InternalError(
        absl::StrCat("page of a move: ", place.page.value, "; limit: ", pages));
  }
  if (place.slot < 0 || move.rows < 0 || place.slot + move.rows > pool.size.page_rows) {
    return absl::InternalError(absl::StrCat("slots of a move: ", place.slot, " + ", move.rows,
                                            "; limit: ", pool.size.page_rows));
  }
  return absl::OkStatus();
}

// [rows, hidden]
at::Tensor frontier_rows(const KvPool& pool, const Move::Place& p, int rows) {
  return pool.frontier.narrow(0, int64_t{p.page.value} * pool.size.page_rows + p.slot, rows);
}

// [layers, kv_heads, rows, head_dim]
at::Tensor kv_rows(const KvPool& pool, bool keys, const Move::Place& p, int rows, int layers) {
  at::Tensor pages = (keys ? pool.keys : pool.values).narrow(0, 0, layers).select(1, p.page.value);
  if (keys && pages.is_cpu()) pages = pages.transpose(2, 3);
  return pages.narrow(2, p.slot, rows);
}

// Within the host's memory; from and to may overlap in the same page.
void move_on_host(const Move& m, const KvPool& from, const KvPool& to) {
  if (m.store == Store::kFrontier) {
    const int64_t row = from.geometry.hidden_size * bytes_of(from.geometry.hidden_type);
    const auto* f = static_cast<const std::byte*>(from.frontier.const_data_ptr());
    auto* t = static_cast<std::byte*>(to.frontier.mutable_data_ptr());
    std::memmove(t + (int64_t{m.to.page.value} * to.size.page_rows + m.to.slot) * row,
                 f + (int64_t{m.from.page.value} * from.size.page_rows + m.from.slot) * row,
                 static_cast<size_t>(m.rows * row));
    return;
  }
  const KvGeometry& g = to.geometry;
  const int64_t element = bytes_of(g.kv_type);
  const auto block = [&](const KvPool& pool, bool keys, const Move::Place& p, int64_t layer,
                         int64_t head) {
    const int64_t page = layer * pool.pages() + p.page.value;
    return static_cast<std::byte*>((keys ? pool.keys : pool.values).mutable_data_ptr()) +
           (page * g.kv_heads + head) * pool.size.page_rows * g.head_dim * element;
  };
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    for (int64_t head = 0; head < g.kv_heads; ++head) {
      const int64_t row = g.head_dim * element;
      std::memmove(block(to, false, m.to, layer, head) + m.to.slot * row,
                   block(from, false, m.from, layer, head) + m.from.slot * row,
                   static_cast<size_t>(m.rows * row));
      // Keys lie by dimension.
      const int64_t from_row = from.size.page_rows * element;
      const int64_t to_row = to.size.page_rows * element;
      const std::byte* f = block(from, true, m.from, layer, head) + m.from.slot * element;
      std::byte* t = block(to, true, m.to, layer, head) + m.to.slot * element;
      for (int i = 0; i < g.head_dim; ++i, f += from_row, t += to_row) {
        std::memmove(t, f, static_cast<size_t>(m.rows * element));
      }
    }
  }
}

// Between other memories than the host's: by a kernel on the target's stream where that reads the
// source, else by LibTorch's copies, which wait for both streams by events.
void move_on_devices(std::span<const Move> moves, const KvPool& from, const KvPool& to) {
#ifdef TANDEM_CUDA
  if (to.keys.is_cuda() && can_read(to.keys.device(), from.keys.device())) {
    cuda::move_rows(moves, from, to);
    return;
  }
#endif
  for (const Move& m : moves) {
    if (m.store == Store::kFrontier) {
      frontier_rows(to, m.to, m.rows).copy_(frontier_rows(from, m.from, m.rows));
      continue;
    }
    for (const bool keys : {true, false}) {
      kv_rows(to, keys, m.to, m.rows, m.layers)
          .copy_(kv_rows(from, keys, m.from, m.rows, m.layers));
    }
  }
}

absl::Status check_move(const Move& m, const KvPool& from, const KvPool& to) {
  TANDEM_RETURN_IF_ERROR(check_place(m.from, m, from));
  TANDEM_RETURN_IF_ERROR(check_place(m.to, m, to));
  const KvGeometry& a = from.geometry;
  const KvGeometry& b = to.geometry;
  const int layers = std::min(a.layers, b.layers);
  if (m.store == Store::kKv && (m.layers < 0 || m.layers > layers)) {
    return absl::InternalError(absl::StrCat("layers of a move: ", m.layers, "; limit: ", layers));
  }
  if (a.kv_heads != b.kv_heads || a.head_dim != b.head_dim || a.hidden_size != b.hidden_size ||
      a.kv_type != b.kv_type || a.hidden_type != b.hidden_type) {
    return absl::InternalError("move between models of different shape");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t KvGeometry::page_bytes(int page_rows) const {
  return int64_t{2} * layers * kv_heads * page_rows * head_dim * bytes_of(kv_type);
}

int64_t KvGeometry::frontier_page_bytes(int page_rows) const {
  return int64_t{page_rows} * hidden_size * bytes_of(hidden_type);
}

KvPool::KvPool(const KvGeometry& g, const PoolSize& s, at::Device device, int64_t prompt_pages)
    : geometry(g), size(s) {
  const auto kv = at::TensorOptions().dtype(g.kv_type).device(device);
  const int64_t all = s.pages + prompt_pages;
  // A kernel that takes whole pages multiplies what no row has written by a weight of 0, and NaN
  // stays NaN.
  const auto make = [](at::IntArrayRef shape, const at::TensorOptions& options) {
    return options.device().is_cpu() ? at::empty(shape, options) : at::zeros(shape, options);
  };
  values = make({g.layers, all, g.kv_heads, s.page_rows, g.head_dim}, kv);
  keys = device.is_cpu() ? at::empty({g.layers, all, g.kv_heads, g.head_dim, s.page_rows}, kv)
                         : at::zeros_like(values);
  for (int i = 0; i < g.layers; ++i) {
    layer_keys.push_back(keys.select(0, i));
    layer_values.push_back(values.select(0, i));
  }
  const auto rows = kv.dtype(g.hidden_type);
  frontier = make({s.frontier_pages * s.page_rows, g.hidden_size}, rows);
  hidden = make({s.values, g.hidden_size}, rows);
  left_by = std::make_unique<std::atomic<TicketId>[]>(static_cast<size_t>(s.values));
}

void KvPool::fill(int64_t first, const at::Tensor& row_keys, const at::Tensor& row_values) {
  const int64_t rows = row_keys.size(1);
  for (int64_t row = 0; row < rows; row += size.page_rows) {
    const int64_t n = std::min<int64_t>(size.page_rows, rows - row);
    const Move::Place place{{}, PageId(first + row / size.page_rows), 0};
    for (const bool is_keys : {true, false}) {
      const at::Tensor& from = is_keys ? row_keys : row_values;
      kv_rows(*this, is_keys, place, static_cast<int>(n), geometry.layers)
          .copy_(from.narrow(0, 0, geometry.layers).narrow(1, row, n).transpose(1, 2));
    }
  }
}

bool can_read(at::Device device, at::Device other) {
  if (device == other) return true;
#ifdef TANDEM_CUDA
  return device.is_cuda() && other.is_cuda() &&
         cuda::reads_memory_of(device.index(), other.index());
#else
  return false;
#endif
}

int64_t first_prompt_page(const ModelShape& shape, const PoolSize& size, size_t adapter) {
  int64_t page = size.pages;
  for (size_t i = 0; i < adapter; ++i) {
    page += (shape.adapters[i].prompt_rows + size.page_rows - 1) / size.page_rows;
  }
  return page;
}

absl::Status apply_moves(std::span<const Move> moves,
                         const std::function<KvPool*(ModelId)>& pool_of) {
  for (size_t i = 0; i < moves.size();) {
    const Move& first = moves[i];
    if (first.kind == Move::kFree) {
      ++i;
      continue;
    }
    const KvPool* from = pool_of(first.from.model);
    const KvPool* to = pool_of(first.to.model);
    if (from == nullptr || to == nullptr) {
      return absl::InternalError(absl::StrCat("move between models ", first.from.model.value,
                                              " and ", first.to.model.value, ": not loaded"));
    }
    // Neighbours of the same kind go together.
    size_t end = i;
    for (; end < moves.size(); ++end) {
      const Move& m = moves[end];
      if (m.kind != first.kind || m.store != first.store || m.from.model != first.from.model ||
          m.to.model != first.to.model) {
        break;
      }
      TANDEM_RETURN_IF_ERROR(check_move(m, *from, *to));
    }
    const auto run = moves.subspan(i, end - i);
    if (from->keys.is_cpu() && to->keys.is_cpu()) {
      for (const Move& m : run) move_on_host(m, *from, *to);
    } else {
      move_on_devices(run, *from, *to);
    }
    i = end;
  }
  return absl::OkStatus();
}

}  // namespace tandem
