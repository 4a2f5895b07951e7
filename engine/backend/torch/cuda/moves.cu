// Moves into the memory of one device: within it, or from another's that it can read.
#include <algorithm>
#include <vector>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/moves.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

// Keys and values, or frontier rows. [layers, pages, heads, page_rows, width] each
struct MovedTensors {
  std::vector<at::Tensor> from, to;
  int64_t from_pages = 0, to_pages = 0;
  int layers = 1, heads = 1;
  int64_t width = 0;
};

template <class Word>
void launch_moves(const MovedTensors& t, const PoolSize& from, const PoolSize& to,
                  const RowMove* moves, int n) {
  MovedRows<Word> rows;
  rows.kinds = static_cast<int>(t.from.size());
  for (size_t kind = 0; kind < t.from.size(); ++kind) {
    rows.from[kind] = static_cast<const Word*>(t.from[kind].const_data_ptr());
    rows.to[kind] = static_cast<Word*>(t.to[kind].mutable_data_ptr());
  }
  rows.from_pages = t.from_pages;
  rows.to_pages = t.to_pages;
  rows.from_page_rows = from.page_rows;
  rows.to_page_rows = to.page_rows;
  rows.layers = t.layers;
  rows.heads = t.heads;
  rows.words =
      t.width * static_cast<int64_t>(t.from[0].element_size()) / static_cast<int64_t>(sizeof(Word));
  move_words<Word>(stream(), rows, moves, n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void move_rows(const RowMove* moves, int n, Store store, const KvPool& from, const KvPool& to) {
  const KvGeometry& g = to.geometry;
  MovedTensors t;
  if (store == Store::kKv) {
    t = {{from.keys, from.values},
         {to.keys, to.values},
         from.pages(),
         to.pages(),
         std::min(g.layers, from.geometry.layers),
         g.kv_heads,
         g.head_dim};
  } else {
    t = {{from.frontier}, {to.frontier}, from.size.frontier_pages, to.size.frontier_pages, 1, 1,
         g.hidden_size};
  }
  const int word = word_bytes(t.width * static_cast<int64_t>(t.from[0].element_size()));
  const auto go = word == 16  ? launch_moves<uint4>
                  : word == 4 ? launch_moves<int32_t>
                              : launch_moves<int16_t>;
  go(t, from.size, to.size, moves, n);
}

}  // namespace tandem::cuda
