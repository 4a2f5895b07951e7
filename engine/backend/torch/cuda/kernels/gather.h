// Copies a sequence's keys and values out of their pages, for kernels that read them without pages.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/platform.h"

namespace tandem::cuda {

inline constexpr int kGatherThreads = 256;

// Keys and values [pages, all_heads, page_rows, words] of one layer, in words of type Word.
template <class Word>
struct GatheredRows {
  Ptr<const Word> keys = nullptr, values = nullptr;
  Ptr<Word> to = nullptr;              // [2, heads, rows, words], keys before values
  Ptr<const int32_t> table = nullptr;  // [1] start of the sequence's page table in pages
  Ptr<const int32_t> pages = nullptr;
  int page_rows = 0;
  int all_heads = 0;   // of a page
  int first_head = 0;  // of those that are copied
  int heads = 0;
  int rows = 0;   // cache rows [0, rows)
  int words = 0;  // of a row of one head
};

// Each thread copies one word of a head's row. A head's rows are copied in order, so neighbouring
// threads read and write neighbouring words.
template <class Word>
__global__ void gather_kernel(GatheredRows<Word> g) {
  begin_launch();
  const int64_t i = blockIdx.x * int64_t{kGatherThreads} + threadIdx.x;
  if (i >= int64_t{g.rows} * g.words) return;
  const int row = static_cast<int>(i) / g.words;
  const int word = static_cast<int>(i) % g.words;
  const int head = blockIdx.y;
  const int table = mutated(Mutant::kGatherFirstTable) ? 0 : g.table[0];
  const int64_t page = g.pages[table + row / g.page_rows];
  const int from_head = mutated(Mutant::kGatherFirstHeads) ? head : g.first_head + head;
  const int64_t from =
      ((page * g.all_heads + from_head) * g.page_rows + row % g.page_rows) * g.words + word;
  const int64_t to = ((blockIdx.z * int64_t{g.heads} + head) * g.rows + row) * g.words + word;
  const bool keys = blockIdx.z == 0 || mutated(Mutant::kGatherKeysTwice);
  g.to[to] = keys ? g.keys[from] : g.values[from];
}

// REQUIRES: rows * words < 2^31
template <class Word>
void gather_rows(Stream stream, const GatheredRows<Word>& g) {
  const int64_t words = int64_t{g.rows} * g.words;
  launch(stream, gather_kernel<Word>,
         {kGatherThreads, (words + kGatherThreads - 1) / kGatherThreads, g.heads, 2}, g);
}

}  // namespace tandem::cuda
