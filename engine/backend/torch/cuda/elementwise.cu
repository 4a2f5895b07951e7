// What happens to a row between the products; the CUDA side of cpu/elementwise.h.
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

// A block per row.
template <class T, class R>
__global__ void embed_kernel(R* x, const T* table, const int32_t* token, int64_t width) {
  const int64_t r = blockIdx.x;
  if (token[r] < 0) return;
  const T* from = table + token[r] * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    x[r * width + i] = static_cast<R>(from[i]);
  }
}

// A block per row; `words` of four bytes each.
__global__ void copy_rows_kernel(int32_t* to, const int64_t* to_index, const int32_t* from,
                                 const int64_t* from_index, int64_t words) {
  const int64_t i = blockIdx.x;
  int32_t* t = to + (to_index != nullptr ? to_index[i] : i) * words;
  const int32_t* f = from + (from_index != nullptr ? from_index[i] : i) * words;
  for (int64_t w = threadIdx.x; w < words; w += kThreads) t[w] = f[w];
}

// A block per row.
template <class T, class R>
__global__ void rms_norm_kernel(T* out, const R* x, const R* weight, R eps, int64_t width) {
  __shared__ R warp_sums[kThreads / kWarp];
  const R* from = x + blockIdx.x * width;
  T* to = out + blockIdx.x * width;
  R sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += from[i] * from[i];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  R total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) total += warp_sums[w];
  const R scale = R(1) / sqrt(total / static_cast<R>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    to[i] = static_cast<T>(weight[i] * (from[i] * scale));
  }
}

// A block per row. Threads take pairs (i, i + head_dim / 2) of the query and key heads, then
// values.
template <class T, class R>
__global__ void rope_and_store_kernel(T* qkv, RowView rows, T* keys, T* values,
                                      const float* inverse_frequencies, int heads, int kv_heads,
                                      int head_dim) {
  const int64_t r = blockIdx.x;
  const int half = head_dim / 2;
  T* row = qkv + r * (heads + 2 * kv_heads) * head_dim;
  const auto position = static_cast<float>(rows.position[r]);
  const int64_t page = rows.slot[r] / rows.page_rows;
  const int64_t slot = rows.slot[r] % rows.page_rows;
  for (int p = threadIdx.x; p < (heads + kv_heads) * half; p += kThreads) {
    const int head = p / half;
    const int i = p % half;
    const R angle = static_cast<R>(position * inverse_frequencies[i]);
    const R c = cos(angle);
    const R s = sin(angle);
    const T* from = row + head * head_dim;
    const R a = static_cast<R>(from[i]);
    const R b = static_cast<R>(from[i + half]);
    const int kv_head = head - heads;
    T* to = kv_head < 0 ? row + head * head_dim
                        : keys + ((page * kv_heads + kv_head) * rows.page_rows + slot) * head_dim;
    to[i] = static_cast<T>(a * c - b * s);
    to[i + half] = static_cast<T>(b * c + a * s);
  }
  const T* value = row + (heads + kv_heads) * head_dim;
  for (int i = threadIdx.x; i < kv_heads * head_dim; i += kThreads) {
    const int64_t at = (page * kv_heads + i / head_dim) * rows.page_rows + slot;
    values[at * head_dim + i % head_dim] = value[i];
  }
}

template <class T, class R>
__global__ void silu_mul_kernel(T* out, const T* gate_up, int64_t n, int64_t width) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    const T* row = gate_up + i / width * 2 * width;
    const R g = static_cast<R>(row[i % width]);
    out[i] = static_cast<T>(g / (R(1) + exp(-g)) * static_cast<R>(row[width + i % width]));
  }
}

}  // namespace

void embed(at::Tensor& x, const at::Tensor& table, const int32_t* token) {
  for_type(table, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    embed_kernel<T, R><<<static_cast<unsigned>(x.size(0)), kThreads, 0, stream()>>>(
        data<R>(x), data<T>(table), token, x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void copy_rows(at::Tensor& to, const int64_t* to_index, const at::Tensor& from,
               const int64_t* from_index, int64_t n) {
  if (n == 0) return;
  const int64_t words = from.size(1) * static_cast<int64_t>(from.element_size()) / 4;
  copy_rows_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream()>>>(
      data<int32_t>(to), to_index, data<int32_t>(from), from_index, words);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps) {
  for_type(out, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    rms_norm_kernel<T, R><<<static_cast<unsigned>(x.size(0)), kThreads, 0, stream()>>>(
        data<T>(out), data<R>(x), data<R>(weight), static_cast<R>(eps), x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope) {
  for_type(qkv, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    rope_and_store_kernel<T, R><<<static_cast<unsigned>(rows.rows), kThreads, 0, stream()>>>(
        data<T>(qkv), rows, static_cast<T*>(kv.keys.mutable_data_ptr()),
        static_cast<T*>(kv.values.mutable_data_ptr()), data<float>(rope.inverse_frequencies),
        kv.heads, kv.kv_heads, kv.head_dim);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void silu_mul(at::Tensor& out, const at::Tensor& gate_up) {
  for_type(out, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    silu_mul_kernel<T, R><<<blocks_for(out.numel(), kThreads), kThreads, 0, stream()>>>(
        data<T>(out), data<T>(gate_up), out.numel(), out.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace tandem::cuda
