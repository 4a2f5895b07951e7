// Copies of cache rows between pages: within a pool, between pools of one device, and from the
// memory of a peer device.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/row_move.h"

namespace tandem::cuda {

inline constexpr int kMoveThreads = 128;

// One or two arrays of rows (keys and values) [layers, pages, heads, page_rows, words] in words of
// type Word.
template <class Word>
struct MovedRows {
  Ptr<const Word> from[2] = {nullptr, nullptr};
  Ptr<Word> to[2] = {nullptr, nullptr};
  int kinds = 0;
  int64_t from_pages = 0, to_pages = 0;
  int from_page_rows = 0, to_page_rows = 0;
  int64_t layers = 0, heads = 0, words = 0;

  int64_t columns() const { return layers * heads * words; }
};

// Each thread handles one word of one layer and head, and performs all moves for it in order. A
// move may thus read what an earlier one wrote, without synchronization. Rows of one move are
// copied in the direction that is safe for overlapping ranges.
template <class Word>
__global__ void move_kernel(MovedRows<Word> rows, int64_t columns, Ptr<const RowMove> moves,
                            int n) {
  begin_launch();
  const int64_t column = blockIdx.x * int64_t{kMoveThreads} + threadIdx.x;
  if (column >= columns) return;
  const int64_t word = column % rows.words;
  const int64_t head = column / rows.words % rows.heads;
  const int64_t layer = column / rows.words / rows.heads;
  // Not indexed by blockIdx.y: indexing kernel arguments copies them to local memory.
  const Ptr<const Word> from = blockIdx.y == 0 ? rows.from[0] : rows.from[1];
  const Ptr<Word> to = blockIdx.y == 0 ? rows.to[0] : rows.to[1];
  const bool separate = mutated(Mutant::kMovesAtOnce);
  const int first = separate ? static_cast<int>(blockIdx.z) : 0;
  for (int m = first; m < (separate ? first + 1 : n); ++m) {
    const RowMove move = moves[m];
    if (layer >= move.layers && !mutated(Mutant::kAllLayers)) continue;
    const int64_t from_page = (layer * rows.from_pages + move.from_page) * rows.heads + head;
    const int64_t to_page = (layer * rows.to_pages + move.to_page) * rows.heads + head;
    const Ptr<const Word> f =
        from + ((from_page * rows.from_page_rows + move.from_slot) * rows.words + word);
    const Ptr<Word> t = to + ((to_page * rows.to_page_rows + move.to_slot) * rows.words + word);
    const bool down = t <= f || mutated(Mutant::kOneDirection);
    for (int i = 0; i < move.rows; ++i) {
      const int64_t row = down ? i : move.rows - 1 - i;
      t[row * rows.words] = f[row * rows.words];
    }
  }
}

template <class Word>
void move_words(Stream stream, const MovedRows<Word>& rows, Ptr<const RowMove> moves, int n) {
  const int64_t columns = rows.columns();
  launch(stream, move_kernel<Word>,
         {kMoveThreads, (columns + kMoveThreads - 1) / kMoveThreads, rows.kinds,
          mutated(Mutant::kMovesAtOnce) ? n : 1},
         rows, columns, moves, n);
}

// Largest word size, 16, 4 or 2 bytes, that divides the row size.
inline int word_bytes(int64_t row_bytes) {
  return row_bytes % 16 == 0 ? 16 : row_bytes % 4 == 0 ? 4 : 2;
}

}  // namespace tandem::cuda
