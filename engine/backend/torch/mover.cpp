#include "engine/backend/torch/mover.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#ifdef TANDEM_CUDA
#include "engine/backend/torch/cuda/kernels.h"
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

// Within the host's memory; from and to may overlap in the same page.
void move_on_host(const RowMove& m, Store store, const KvPool& from, const KvPool& to) {
  if (store == Store::kFrontier) {
    const int64_t row = from.geometry.hidden_size * bytes_of(from.geometry.hidden_type);
    const auto* f = static_cast<const std::byte*>(from.frontier.const_data_ptr());
    auto* t = static_cast<std::byte*>(to.frontier.mutable_data_ptr());
    std::memmove(t + (m.to_page * to.size.page_rows + m.to_slot) * row,
                 f + (m.from_page * from.size.page_rows + m.from_slot) * row,
                 static_cast<size_t>(m.rows * row));
    return;
  }
  const KvGeometry& g = to.geometry;
  const int64_t element = bytes_of(g.kv_type);
  const auto block = [&](const KvPool& pool, bool keys, int64_t of, int64_t layer, int64_t head) {
    const int64_t page = layer * pool.pages() + of;
    return static_cast<std::byte*>((keys ? pool.keys : pool.values).mutable_data_ptr()) +
           (page * g.kv_heads + head) * pool.size.page_rows * g.head_dim * element;
  };
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    for (int64_t head = 0; head < g.kv_heads; ++head) {
      const int64_t row = g.head_dim * element;
      std::memmove(block(to, false, m.to_page, layer, head) + m.to_slot * row,
                   block(from, false, m.from_page, layer, head) + m.from_slot * row,
                   static_cast<size_t>(m.rows * row));
      // Keys lie by dimension.
      const int64_t from_row = from.size.page_rows * element;
      const int64_t to_row = to.size.page_rows * element;
      const std::byte* f = block(from, true, m.from_page, layer, head) + m.from_slot * element;
      std::byte* t = block(to, true, m.to_page, layer, head) + m.to_slot * element;
      for (int i = 0; i < g.head_dim; ++i, f += from_row, t += to_row) {
        std::memmove(t, f, static_cast<size_t>(m.rows * element));
      }
    }
  }
}

// Between devices that do not read each other's memory: by LibTorch's copies.
void copy_between(const RowMove& m, Store store, const KvPool& from, const KvPool& to) {
  if (store == Store::kFrontier) {
    to.frontier_rows(m.to_page, m.to_slot, m.rows)
        .copy_(from.frontier_rows(m.from_page, m.from_slot, m.rows));
    return;
  }
  for (const bool keys : {true, false}) {
    to.kv_rows(keys, m.to_page, m.to_slot, m.rows, m.layers)
        .copy_(from.kv_rows(keys, m.from_page, m.from_slot, m.rows, m.layers));
  }
}

}  // namespace

absl::Status Mover::list(std::span<const Move> moves, const PoolOf& pool_of) {
  list_.clear();
  runs_.clear();
  const Move* last = nullptr;
  for (const Move& m : moves) {
    if (m.kind == Move::kFree) {
      last = nullptr;
      continue;
    }
    const bool same = last != nullptr && m.kind == last->kind && m.store == last->store &&
                      m.from.model == last->from.model && m.to.model == last->to.model;
    if (!same) {
      const KvPool* from = pool_of(m.from.model);
      const KvPool* to = pool_of(m.to.model);
      if (from == nullptr || to == nullptr) {
        return absl::InternalError(absl::StrCat("move between models ", m.from.model.value, " and ",
                                                m.to.model.value, ": not loaded"));
      }
      runs_.push_back({m.store, from, to, list_.size(), 0});
    }
    last = &m;
    Run& run = runs_.back();
    TANDEM_RETURN_IF_ERROR(check_move(m, *run.from, *run.to));
    list_.push_back({m.from.page.value, m.to.page.value, m.from.slot, m.to.slot, m.rows,
                     m.store == Store::kKv ? m.layers : 1});
    ++run.n;
  }
  return absl::OkStatus();
}

absl::Status Mover::put(std::span<const Move> moves, const PoolOf& pool_of) {
  TANDEM_RETURN_IF_ERROR(list(moves, pool_of));
  if (runs_.empty()) return absl::OkStatus();
  staging_.begin(list_.size() * sizeof(RowMove));
  const RowMove* const all = staging_.place(list_);
  staging_.upload();
  for (const Run& run : runs_) {
    const bool reads = tandem::reads(device_queue_, run.from->device_queue);
    follow(device_queue_, run.from->device_queue);
    const RowMove* const placed = all + run.first;
    const RowMove* const here = list_.data() + run.first;
    launch(device_queue_, [run, reads, placed, here] {
      for (int i = 0; reads && run.to->keys.is_cpu() && i < run.n; ++i) {
        move_on_host(placed[i], run.store, *run.from, *run.to);
      }
#ifdef TANDEM_CUDA
      if (reads && run.to->keys.is_cuda()) {
        cuda::move_rows(placed, run.n, run.store, *run.from, *run.to);
      }
#endif
      for (int i = 0; !reads && i < run.n; ++i) {
        copy_between(here[i], run.store, *run.from, *run.to);
      }
    });
  }
  return absl::OkStatus();
}

}  // namespace tandem
