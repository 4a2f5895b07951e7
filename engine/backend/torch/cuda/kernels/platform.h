// What kernels need beyond C++: CUDA's own, or on a CPU in tests their emulated twins. The kernels'
// sources are the same, and so are the grids that launch() gets.
//
// Names, with nvcc as without: threadIdx, blockIdx, gridDim, __global__, __device__, __shared__,
// __syncthreads, __shfl_xor_sync, exp and its like; and of ours
//   Ptr<T>             T*, whose use is checked when emulated
//   words_of<Word>(p)  p, to be read in words of another type
//   read_once(p, i)    p[i], 16 bytes of constant memory that are not read again
//   mma_bf16, mma_half(c, a, b0, b1)  a warp's c += a * b on tensor cores, of 16 x 16 and 16 x 8
//                      numbers of 16 bits, summed in fp32 (PTX: mma.m16n8k16, where fragments are)
//   mma_u8s8(c, a, b0, b1)  the same of 16 x 32 numbers of 8 bits without sign and 32 x 8 with,
//                      summed exactly (PTX: mma.m16n8k32)
//   let_next_begin()   lets the stream's next launch begin, up to its wait_for_last()
//   wait_for_last()    waits for the launches before this one; nothing is touched before
//   begin_launch()     both
//   prefetch(p, i)     p[i] will be read soon; may be called before wait_for_last()
//   SharedArray<T, N>  T[N] in shared memory: `__shared__ SharedArray<float, 4> sums;`
//   Geometry, Stream, launch(stream, kernel, geometry, arguments...)
//   mutated(mutant)    mutants.h
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
