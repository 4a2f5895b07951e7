// Attention over pages: a block per row and query head; the CUDA side of cpu/attention.h.
//
// The warps of a block take the row's visible keys in turn, each with an online softmax over its
// own; their parts are merged at the end. Which key goes to which warp depends only on the key's
// number among the visible ones, so a row's bits do not depend on the batch.
#include <cmath>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 256;
constexpr int kPerLane = kMaxHeadDim / kWarp;  // dimensions of a head per lane: lane, lane + 32, ..

template <class T, class A>
__global__ void attention_kernel(T* out, const T* qkv, RowView rows, const T* keys, const T* values,
                                 int heads, int kv_heads, int head_dim, A scale) {
  __shared__ A tops[kWarps];
  __shared__ A totals[kWarps];
  __shared__ A sums[kWarps][kMaxHeadDim];

  const int64_t r = blockIdx.x;
  const int head = blockIdx.y;
  const int kv_head = head / (heads / kv_heads);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const T* q = qkv + (r * (heads + 2 * kv_heads) + head) * head_dim;
  const int32_t* table = rows.pages + rows.table[r];
  // As RowView::first_dense() and first_extra().
  const bool cut = rows.window > 0;
  const int oldest = rows.position[r] + 1 - rows.window;
  const int first =
      cut ? min(rows.dense_end[r], max(rows.first_key[r], oldest)) : rows.first_key[r];
  const int dense = rows.dense_end[r] - first;
  const int prompts = rows.prompts == nullptr ? 0 : rows.prompts[r];
  const int extras = cut ? max(rows.extra_begin[r], rows.extra_end[r] - prompts - rows.window)
                         : rows.extra_begin[r];
  const int n = dense + rows.extra_end[r] - extras;

  A query[kPerLane];
  A sum[kPerLane];
  for (int j = 0; j < kPerLane; ++j) {
    const int i = lane + j * kWarp;
    query[j] = i < head_dim ? static_cast<A>(q[i]) * scale : A(0);
    sum[j] = 0;
  }
  A top = -INFINITY;
  A total = 0;
  for (int k = warp; k < n; k += kWarps) {
    const int cache_row = k < dense ? first + k : rows.extra[extras + k - dense];
    const int64_t page = table[cache_row / rows.page_rows];
    const int64_t at =
        ((page * kv_heads + kv_head) * rows.page_rows + cache_row % rows.page_rows) * head_dim;
    A score = 0;
    for (int j = 0; j < kPerLane; ++j) {
      const int i = lane + j * kWarp;
      if (i < head_dim) score += query[j] * static_cast<A>(keys[at + i]);
    }
    score = warp_sum(score);
    // Not `fmax`: NaN must stay NaN.
    const A new_top = score > top || score != score ? score : top;
    const A shrink = exp(top - new_top);
    const A p = exp(score - new_top);
    total = total * shrink + p;
    for (int j = 0; j < kPerLane; ++j) {
      const int i = lane + j * kWarp;
      if (i < head_dim) sum[j] = sum[j] * shrink + p * static_cast<A>(values[at + i]);
    }
    top = new_top;
  }
  for (int j = 0; j < kPerLane; ++j) {
    const int i = lane + j * kWarp;
    if (i < head_dim) sums[warp][i] = sum[j];
  }
  if (lane == 0) {
    tops[warp] = top;
    totals[warp] = total;
  }
  __syncthreads();
  // Warp 0 has at least one key: a row sees itself.
  A best = tops[0];
  for (int w = 1; w < kWarps; ++w) best = tops[w] > best ? tops[w] : best;
  A whole = 0;
  A weight[kWarps];
  for (int w = 0; w < kWarps; ++w) {
    weight[w] = totals[w] == A(0) ? A(0) : exp(tops[w] - best);
    whole += totals[w] * weight[w];
  }
  T* to = out + (r * heads + head) * head_dim;
  for (int i = threadIdx.x; i < head_dim; i += kWarps * kWarp) {
    A s = 0;
    for (int w = 0; w < kWarps; ++w) s += sums[w][i] * weight[w];
    to[i] = static_cast<T>(s / whole);
  }
}

void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale) {
  TORCH_CHECK(kv.head_dim <= kMaxHeadDim, "head_dim: ", kv.head_dim, "; allowed: up to ",
              kMaxHeadDim);
  const dim3 grid(static_cast<unsigned>(rows.rows), static_cast<unsigned>(kv.heads));
  for_type(qkv, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = typename Residual<T>::type;
    attention_kernel<T, A><<<grid, kWarps * kWarp, 0, stream()>>>(
        data<T>(out), data<T>(qkv), rows, data<T>(kv.keys), data<T>(kv.values), kv.heads,
        kv.kv_heads, kv.head_dim, static_cast<A>(scale));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void add_attention(Ops& ops) { ops.attention = attention; }

}  // namespace tandem::cuda
