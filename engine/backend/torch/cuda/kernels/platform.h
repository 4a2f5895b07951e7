// What kernels need beyond C++: CUDA itself, or emulated counterparts in tests. The kernel sources
// and the grids passed to launch() are the same in both cases.
//
// CUDA names: threadIdx, blockIdx, gridDim, __global__, __device__, __shared__, __syncthreads,
// __shfl_xor_sync, exp and similar. Own names:
//   Ptr<T>             T*; accesses are checked when emulated
//   words_of<Word>(p)  p as words of another type
//   address_of(p)      p as a number, for its alignment
//   read_once(p, i)    p[i], 16 bytes of constant memory that are read once
//   mma_bf16(c, a, b0, b1), mma_half(c, a, b0, b1)
//                      warp-level c += a * b on tensor cores, 16x16 by 16x8 elements of 16 bits,
//                      summed in fp32 (PTX: mma.m16n8k16, which defines the fragments)
//   mma_u8s8(c, a, b0, b1)
//                      the same for 16x32 u8 by 32x8 s8, exact (PTX: mma.m16n8k32)
//   let_next_begin()   lets the stream's next launch start, up to its wait_for_last()
//   wait_for_last()    waits for the previous launches; device memory must not be accessed before
//   begin_launch()     both
//   prefetch(p, i)     p[i] will be read soon; allowed before wait_for_last()
//   SharedArray<T, N>  T[N] in shared memory: `__shared__ SharedArray<float, 4> sums;`
//                      sums.take(i, x) copies elements from i on to the array x, in words of 16
//                      bytes if x is whole words; i must then be aligned to them; put() is the
//                      reverse
//   Geometry, Stream, launch(stream, kernel, geometry, arguments...)
//   mutated(mutant)    see mutants.h
#pragma once

#ifdef __CUDACC__
#include "engine/backend/torch/cuda/kernels/on_device.h"
#else
#include "engine/backend/torch/cuda/kernels/emulated.h"
#endif

namespace tandem::cuda {

__device__ inline void begin_launch() {
  let_next_begin();
  wait_for_last();
}

}  // namespace tandem::cuda
