// The rows of a launch for kernels: positions, slots of their keys, and the keys that they see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tandem {

// Neighbouring rows of a launch: the rows of one long chunk of a prompt, or rows outside of chunks.
struct RowPiece {
  int first = 0;  // row of the launch
  int rows = 0;
  // Row i of the piece sees the cache rows [0, most_keys - rows + i + 1) of one sequence, up to the
  // layer's window, and no others.
  bool chunk = false;
  int most_keys = 0;  // as RowView's, of these rows
  int together = 1;
};

// Arrays lie in memory of the device that runs the kernel.
//
// A row sees the cache rows [first_key, dense_end) of its sequence, then the cache rows
// extra[extra_begin .. extra_end), both ascending and with the row itself. Keys are stored before
// attention, so past rows and rows of the same batch are read alike. A layer whose window is
// narrower than the plan's sees the last `window` of these rows. A mask row's last extra rows are
// its adapter's prompts, which have no positions and are not limited by a window.
struct RowView {
  int rows = 0;
  int page_rows = 0;
  const int32_t* position = nullptr;     // [rows]
  const int64_t* slot = nullptr;         // [rows] page * page_rows + slot in page: its own K and V
  const int32_t* table = nullptr;        // [rows] start of its sequence's page table in pages
  const int32_t* first_key = nullptr;    // [rows]
  const int32_t* dense_end = nullptr;    // [rows]
  const int32_t* extra_begin = nullptr;  // [rows]
  const int32_t* extra_end = nullptr;    // [rows]
  const int32_t* prompts = nullptr;      // [rows] prompts among its extra rows; null: none
  const int32_t* extra = nullptr;
  const int32_t* pages = nullptr;
  // [rows] instead of first_key and dense_end, in layers with a bidirectional window; null: none.
  const int32_t* near_first = nullptr;
  const int32_t* near_end = nullptr;
  int window = 0;  // of the layer; 0: the plan's

  // On the host, for splitting the work:
  int most_keys = 0;  // one more than the largest number of a visible key
  int together = 1;   // neighbouring rows of one sequence, at most
  // All rows, in order, if there are long chunks among them (prompt_attention.h); null: there are
  // none.
  const RowPiece* pieces = nullptr;
  int piece_count = 0;

  // These rows alone. On the host.
  RowView part(const RowPiece& piece) const {
    RowView v = *this;
    v.rows = piece.rows;
    v.most_keys = piece.most_keys;
    v.together = piece.together;
    v.pieces = nullptr;
    v.piece_count = 0;
    for (const int32_t** column :
         {&v.position, &v.table, &v.first_key, &v.dense_end, &v.extra_begin, &v.extra_end,
          &v.prompts, &v.near_first, &v.near_end}) {
      if (*column != nullptr) *column += piece.first;
    }
    if (v.slot != nullptr) v.slot += piece.first;
    return v;
  }
  int prompt_rows(int r) const { return prompts == nullptr ? 0 : prompts[r]; }
  // The number of the last key. Keys are numbered in the order in which a row sees them: a dense
  // key by its position, extra keys consecutively after that. On the host.
  int last_key(int r) const { return position[r] + prompt_rows(r); }
  // [first_dense, dense_end) and [first_extra, extra_end) within the window. On the host.
  int first_dense(int r) const {
    if (window == 0) return first_key[r];
    return std::min(dense_end[r], std::max(first_key[r], position[r] + 1 - window));
  }
  int first_extra(int r) const {
    return window == 0 ? extra_begin[r]
                       : std::max(extra_begin[r], extra_end[r] - prompt_rows(r) - window);
  }
};

// The per-row columns of a RowView, on the host.
struct RowColumns {
  std::vector<int32_t> position, table, first_key, dense_end, extra_begin, extra_end, prompts;
  std::vector<int64_t> slot;
  // With cross-attention: the start of the memory's page table in pages, and the memory's rows.
  std::vector<int32_t> memory_table, memory_rows;
  std::vector<int32_t> near_first, near_end;  // with a bidirectional window

  int rows() const { return static_cast<int>(position.size()); }

  // RowView::most_keys of all rows, or of the rows [first, end).
  int most_keys() const { return most_keys(0, position.size()); }
  int most_keys(size_t first, size_t end) const {
    int most = 0;
    for (size_t r = first; r < end; ++r) {
      const bool extras = extra_begin[r] < extra_end[r];
      most = std::max(most, extras ? position[r] + prompts[r] + 1 : dense_end[r]);
    }
    return most;
  }
  // RowView::together for rows with these page tables, or for the rows [begin, end).
  static int together(const std::vector<int32_t>& tables) {
    return together(tables, 0, tables.size());
  }
  static int together(const std::vector<int32_t>& tables, size_t begin, size_t end) {
    int most = 1;
    for (size_t r = begin, first = begin; r < end; ++r) {
      if (tables[r] != tables[first]) first = r;
      most = std::max(most, static_cast<int>(r - first) + 1);
    }
    return most;
  }

  void clear() {
    for (auto* c : {&position, &table, &first_key, &dense_end, &extra_begin, &extra_end, &prompts,
                    &memory_table, &memory_rows, &near_first, &near_end}) {
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
    prompts.push_back(from.prompts[r]);
    slot.push_back(from.slot[r]);
    if (!from.near_first.empty()) {
      near_first.push_back(from.near_first[r]);
      near_end.push_back(from.near_end[r]);
    }
    if (from.memory_rows.empty()) return;
    memory_table.push_back(from.memory_table[r]);
    memory_rows.push_back(from.memory_rows[r]);
  }
};

}  // namespace tandem
