// What kernels know of the rows they run: positions, where their keys go and which keys they see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tandem {

// Arrays lie in memory of the device that runs the kernel.
//
// A row sees the cache rows [first_key, dense_end) of its sequence and then the cache rows
// extra[extra_begin .. extra_end), all ascending, itself included. Keys of rows that run are
// stored before attention, so past rows and rows of the same batch are read alike. A layer with a
// window narrower than the rows were planned for sees the last `window` of them.
struct RowView {
  int rows = 0;
  int page_rows = 0;
  const int32_t* position = nullptr;     // [rows]
  const int64_t* slot = nullptr;         // [rows] page * page_rows + slot in it: its own K and V
  const int32_t* table = nullptr;        // [rows] where its sequence's page table starts in pages
  const int32_t* first_key = nullptr;    // [rows]
  const int32_t* dense_end = nullptr;    // [rows]
  const int32_t* extra_begin = nullptr;  // [rows]
  const int32_t* extra_end = nullptr;    // [rows]
  const int32_t* extra = nullptr;
  const int32_t* pages = nullptr;
  int window = 0;  // of the layer; 0: none but the plan's

  // [first_dense, dense_end) and [first_extra, extra_end) within the window: a dense row's position
  // is its number, and extra rows end with the row itself, one position each. On the host.
  int first_dense(int r) const {
    if (window == 0) return first_key[r];
    return std::min(dense_end[r], std::max(first_key[r], position[r] + 1 - window));
  }
  int first_extra(int r) const {
    return window == 0 ? extra_begin[r] : std::max(extra_begin[r], extra_end[r] - window);
  }
};

// The per-row columns of a RowView, on the host.
struct RowColumns {
  std::vector<int32_t> position, table, first_key, dense_end, extra_begin, extra_end;
  std::vector<int64_t> slot;

  int rows() const { return static_cast<int>(position.size()); }
  void clear() {
    for (auto* c : {&position, &table, &first_key, &dense_end, &extra_begin, &extra_end}) {
      c->clear();
    }
    slot.clear();
  }
  void append(const RowColumns& from, int row) {
    const auto r = static_cast<size_t>(row);
    position.push_back(from.position[r]);
    table.push_back(from.table[r]);
    first_key.push_back(from.first_key[r]);
    dense_end.push_back(from.dense_end[r]);
    extra_begin.push_back(from.extra_begin[r]);
    extra_end.push_back(from.extra_end[r]);
    slot.push_back(from.slot[r]);
  }
};

}  // namespace tandem
