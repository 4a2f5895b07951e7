// One kernel, and the headers that kernels of the backend include: ATen, the current stream, cub.
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>

#include <cub/block/block_reduce.cuh>

namespace tandem {

__global__ void double_each(const float* in, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * in[i];
}

bool doubled_on_device(int count) {
  const at::Tensor in = at::arange(count, at::device(at::kCUDA).dtype(at::kFloat));
  at::Tensor out = at::empty_like(in);
  double_each<<<(count + 127) / 128, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
      in.data_ptr<float>(), out.data_ptr<float>(), count);
  return cudaGetLastError() == cudaSuccess && at::equal(out, at::add(in, in));
}

}  // namespace tandem
