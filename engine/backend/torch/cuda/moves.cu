// Moves within the memory of one device.
#include <ATen/ops/empty.h>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 64;

struct RowMove {
  int64_t from_page, to_page;
  int32_t from_slot, to_slot;
  int32_t rows, layers;
};

// [layers, pages, kv_heads, page_rows, words]: one of keys and values, in words of `Word`.
template <class Word>
struct Store {
  Word* data;
  int64_t pages;
  int page_rows;
};

// A block per (layer, kv head). Each does all moves in order, row by row, so that what one move
// writes the next reads; rows of one move go in the direction in which they cannot overwrite
// what is still to be read.
template <class Word>
__global__ void move_kernel(Store<Word> from, Store<Word> to, int kv_heads, int words,
                            const RowMove* moves, int n) {
  const int64_t layer = blockIdx.x;
  const int64_t head = blockIdx.y;
  for (int m = 0; m < n; ++m) {
    const RowMove move = moves[m];
    if (layer >= move.layers) continue;
    const int64_t from_page = (layer * from.pages + move.from_page) * kv_heads + head;
    const int64_t to_page = (layer * to.pages + move.to_page) * kv_heads + head;
    const Word* f = from.data + (from_page * from.page_rows + move.from_slot) * words;
    Word* t = to.data + (to_page * to.page_rows + move.to_slot) * words;
    const bool down = t <= f;
    for (int i = 0; i < move.rows; ++i) {
      const int row = down ? i : move.rows - 1 - i;
      for (int w = threadIdx.x; w < words; w += kThreads) t[row * words + w] = f[row * words + w];
      __syncthreads();
    }
  }
}

}  // namespace

void move_rows(std::span<const Move> moves, const KvPool& from, const KvPool& to) {
  const bool kv = moves.front().store == tandem::Store::kKv;
  const auto bytes = static_cast<int64_t>(moves.size() * sizeof(RowMove));
  // Pinned memory of the caching allocator is not used again before the copy on this stream is
  // done.
  at::Tensor host = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  auto* list = static_cast<RowMove*>(host.mutable_data_ptr());
  for (size_t i = 0; i < moves.size(); ++i) {
    const Move& m = moves[i];
    list[i] = {m.from.page.value, m.to.page.value, m.from.slot,
               m.to.slot,         m.rows,          kv ? m.layers : 1};
  }
  const at::Tensor on_device = host.to(to.keys.device(), /*non_blocking=*/true);
  const auto* device_list = data<RowMove>(on_device);
  const auto n = static_cast<int>(moves.size());
  const KvGeometry& g = to.geometry;
  const auto go = [&](const at::Tensor& f, const at::Tensor& t, int layers, int heads, int width,
                      int64_t from_pages, int64_t to_pages) {
    // Two-byte words are the largest that fit every type and head size.
    using Word = int16_t;
    const int words = width * static_cast<int>(f.element_size()) / static_cast<int>(sizeof(Word));
    const dim3 grid(static_cast<unsigned>(layers), static_cast<unsigned>(heads));
    move_kernel<Word><<<grid, kThreads, 0, stream()>>>(
        Store<Word>{static_cast<Word*>(f.mutable_data_ptr()), from_pages, from.size.page_rows},
        Store<Word>{static_cast<Word*>(t.mutable_data_ptr()), to_pages, to.size.page_rows}, heads,
        words, device_list, n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  };
  if (kv) {
    go(from.keys, to.keys, g.layers, g.kv_heads, g.head_dim, from.pages(), to.pages());
    go(from.values, to.values, g.layers, g.kv_heads, g.head_dim, from.pages(), to.pages());
  } else {
    go(from.frontier, to.frontier, 1, 1, g.hidden_size, from.size.frontier_pages,
       to.size.frontier_pages);
  }
}

}  // namespace tandem::cuda
