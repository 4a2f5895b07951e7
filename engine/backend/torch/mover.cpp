#include "engine/backend/torch/mover.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

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

// Moves between devices that do not read each other's memory, by LibTorch's copies.
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

absl::Status Mover::list_page(const Move& move, const PoolOf& pool_of) {
  const Move::Place& place = move.kind == Move::kSave ? move.from : move.to;
  const KvPool* const pool = pool_of(place.model);
  if (pool == nullptr || pool->device_queue != device_queue_ || move.host == nullptr ||
      move.store != Store::kKv) {
    return absl::InternalError(absl::StrCat("page of model ", place.model.value,
                                            " to or from the host: not on this device"));
  }
  if (!place.page.valid() || place.page.value >= pool->size.pages) {
    return absl::InternalError(absl::StrCat("page to or from the host: ", place.page.value,
                                            "; limit: ", pool->size.pages));
  }
  runs_.push_back({.page = &move, .from = pool});
  return absl::OkStatus();
}

absl::Status Mover::list(std::span<const Move> moves, const PoolOf& pool_of) {
  list_.clear();
  runs_.clear();
  const Move* last = nullptr;
  for (const Move& m : moves) {
    if (m.kind == Move::kFree) {
      last = nullptr;
      continue;
    }
    if (m.kind == Move::kSave || m.kind == Move::kLoad) {
      last = nullptr;
      TANDEM_RETURN_IF_ERROR(list_page(m, pool_of));
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
      runs_.push_back({nullptr, m.store, from, to, list_.size(), 0});
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
    if (run.page != nullptr) {
      const bool saves = run.page->kind == Move::kSave;
      run.from->copy_page((saves ? run.page->from : run.page->to).page.value, run.page->host,
                          saves);
      continue;
    }
    const bool reads = tandem::reads(device_queue_, run.from->device_queue);
    follow(device_queue_, run.from->device_queue);
    const RowMove* const placed = all + run.first;
    const RowMove* const here = list_.data() + run.first;
    launch(device_queue_, [run, reads, placed, here] {
      if (reads) {
        return run.to->platform->move_rows(placed, run.n, run.store, *run.from, *run.to);
      }
      for (int i = 0; i < run.n; ++i) copy_between(here[i], run.store, *run.from, *run.to);
    });
  }
  return absl::OkStatus();
}

}  // namespace tandem
