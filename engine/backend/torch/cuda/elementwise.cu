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

// Sum over the block of what each thread brings; every thread gets it. `sums`: shared.
template <class R>
__device__ R block_sum(R x, R* sums) {
  x = warp_sum(x);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  R total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) total += sums[w];
  return total;
}

template <class R>
struct NormArguments {
  bool layer;  // NormKind::kLayer, else kRms
  const R* weight;
  const R* bias;
  R eps;
};

// The norm of one row by its block; add: to what lies there. Rows of `from` and `to` may be one.
template <bool add, class To, class From, class R>
__device__ void norm_row(To* to, const From* from, const NormArguments<R>& norm, int64_t width) {
  __shared__ R sums[kThreads / kWarp];
  R mean = 0;
  if (norm.layer) {
    R sum = 0;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += static_cast<R>(from[i]);
    mean = block_sum(sum, sums) / static_cast<R>(width);
  }
  R squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const R x = static_cast<R>(from[i]) - mean;
    squares += x * x;
  }
  const R scale = R(1) / sqrt(block_sum(squares, sums) / static_cast<R>(width) + norm.eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    R y = norm.weight[i] * ((static_cast<R>(from[i]) - mean) * scale);
    if (norm.layer) y += norm.bias[i];
    to[i] = static_cast<To>(add ? static_cast<R>(to[i]) + y : y);
  }
}

// A block per row.
template <bool add, class To, class From, class R>
__global__ void norm_kernel(To* to, const From* from, NormArguments<R> norm, int64_t width) {
  norm_row<add>(to + blockIdx.x * width, from + blockIdx.x * width, norm, width);
}

// A block per row and head; `x` begins with the first head.
template <class T, class R>
__global__ void norm_heads_kernel(T* x, int64_t stride, NormArguments<R> norm, int head_dim) {
  T* head = x + blockIdx.x * stride + blockIdx.y * static_cast<int64_t>(head_dim);
  norm_row<false>(head, head, norm, head_dim);
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
  const bool rotate = inverse_frequencies != nullptr;
  const int64_t page = rows.slot[r] / rows.page_rows;
  const int64_t slot = rows.slot[r] % rows.page_rows;
  for (int p = threadIdx.x; p < (heads + kv_heads) * half; p += kThreads) {
    const int head = p / half;
    const int i = p % half;
    const R angle = rotate ? static_cast<R>(position * inverse_frequencies[i]) : R(0);
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

template <class R>
__device__ R activated(R x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return x / (R(1) + exp(-x));
    case Activation::kGelu:
      return R(0.5) * x * (R(1) + erf(x * R(0.70710678118654752)));
    case Activation::kGeluTanh: {
      const R u = R(0.79788456080286536) * (x + R(0.044715) * x * x * x);
      return R(0.5) * x * (R(1) + tanh(u));
    }
    case Activation::kRelu:
      return x < R(0) ? R(0) : x;
  }
  return x;
}

template <class T, class R>
__global__ void gate_kernel(T* out, const T* gate_up, int64_t n, int64_t width,
                            Activation activation) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    const T* row = gate_up + i / width * 2 * width;
    const R g = static_cast<R>(row[i % width]);
    out[i] = static_cast<T>(activated(g, activation) * static_cast<R>(row[width + i % width]));
  }
}

template <class T, class R>
__global__ void activate_kernel(T* x, int64_t n, Activation activation) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    x[i] = static_cast<T>(activated(static_cast<R>(x[i]), activation));
  }
}

// A block per row.
template <class R>
__global__ void scale_rows_kernel(R* x, const int32_t* token, R scale, int64_t width) {
  const int64_t r = blockIdx.x;
  if (token[r] < 0) return;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) x[r * width + i] *= scale;
}

// A block per row.
template <class T, class R>
__global__ void add_positions_kernel(R* x, const T* table, const int32_t* token,
                                     const int32_t* position, int64_t width) {
  const int64_t r = blockIdx.x;
  if (token[r] < 0) return;
  const T* from = table + position[r] * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    x[r * width + i] += static_cast<R>(from[i]);
  }
}

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

void scale_rows(at::Tensor& x, const int32_t* token, double scale) {
  for_type(x, [&](auto tag) {
    using R = typename decltype(tag)::type;
    scale_rows_kernel<R><<<static_cast<unsigned>(x.size(0)), kThreads, 0, stream()>>>(
        data<R>(x), token, static_cast<R>(scale), x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void add_positions(at::Tensor& x, const at::Tensor& table, const int32_t* token,
                   const int32_t* position) {
  for_type(table, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    add_positions_kernel<T, R><<<static_cast<unsigned>(x.size(0)), kThreads, 0, stream()>>>(
        data<R>(x), data<T>(table), token, position, x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <class R>
NormArguments<R> arguments(const Norm& norm) {
  return {norm.kind == NormKind::kLayer, data<R>(norm.weight), data<R>(norm.bias),
          static_cast<R>(norm.eps)};
}

void norm(at::Tensor& out, const at::Tensor& x, const Norm& norm) {
  for_type(out, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    norm_kernel<false, T, R, R><<<static_cast<unsigned>(x.size(0)), kThreads, 0, stream()>>>(
        data<T>(out), data<R>(x), arguments<R>(norm), x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void add_norm(at::Tensor& x, const at::Tensor& y, const Norm& norm) {
  for_type(y, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    norm_kernel<true, R, T, R><<<static_cast<unsigned>(x.size(0)), kThreads, 0, stream()>>>(
        data<R>(x), data<T>(y), arguments<R>(norm), x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void norm_heads(at::Tensor& x, int first, int heads, int head_dim, const Norm& norm) {
  const dim3 grid(static_cast<unsigned>(x.size(0)), static_cast<unsigned>(heads));
  for_type(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    norm_heads_kernel<T, R><<<grid, kThreads, 0, stream()>>>(
        data<T>(x) + int64_t{first} * head_dim, x.size(1), arguments<R>(norm), head_dim);
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

void gate(at::Tensor& out, const at::Tensor& gate_up, Activation activation) {
  for_type(out, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    gate_kernel<T, R><<<blocks_for(out.numel(), kThreads), kThreads, 0, stream()>>>(
        data<T>(out), data<T>(gate_up), out.numel(), out.size(1), activation);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void activate(at::Tensor& x, Activation activation) {
  for_type(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = typename Residual<T>::type;
    activate_kernel<T, R><<<blocks_for(x.numel(), kThreads), kThreads, 0, stream()>>>(
        data<T>(x), x.numel(), activation);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void add_elementwise(Ops& ops) {
  ops.embed = embed;
  ops.scale_rows = scale_rows;
  ops.add_positions = add_positions;
  ops.copy_rows = copy_rows;
  ops.norm = norm;
  ops.add_norm = add_norm;
  ops.norm_heads = norm_heads;
  ops.rope_and_store = rope_and_store;
  ops.gate = gate;
  ops.activate = activate;
}

}  // namespace tandem::cuda
