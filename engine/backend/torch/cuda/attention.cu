// Attention of ops.h on CUDA.
#include <ATen/ops/empty.h>

#include <type_traits>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/attention.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale, const DistanceBias& bias) {
  TORCH_CHECK(rows.most_keys > 0, "rows without their number of keys");
  for_type(qkv, [&]<class T>() {
    using A = Residual<T>;
    AttentionArguments<T> a;
    a.out = data<T>(out);
    a.qkv = data<T>(qkv);
    a.q_stride = qkv.size(1);
    a.rows = rows;
    a.kv = {kv.heads, kv.kv_heads, kv.head_dim, data<T>(kv.keys), data<T>(kv.values)};
    a.scale = static_cast<A>(scale);
    a.bias = {data<A>(bias.table), bias.before, bias.after};
    a.grid = attention_grid<T>(rows, {kv.heads, kv.kv_heads, kv.head_dim});
    const int64_t parts = int64_t{a.grid.slice_rows} * kv.heads * a.grid.splits;
    at::Tensor memory;  // of the caching allocator, whose memory is ordered by the stream
    if (a.grid.splits > 1) {
      const auto type = std::is_same_v<A, double> ? at::kDouble : at::kFloat;
      memory = at::empty({parts * (kv.head_dim + 2)}, qkv.options().dtype(type));
      a.parts.sums = data<A>(memory);
      a.parts.tops = a.parts.sums + parts * kv.head_dim;
      a.parts.totals = a.parts.tops + parts;
    }
    cuda::attention<T>(stream(), a);
  });
}

}  // namespace

int max_head_dim() { return kMaxHeadDim; }

void add_attention(Ops& ops) { ops.attention = attention; }

}  // namespace tandem::cuda
