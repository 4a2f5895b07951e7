// platform.h for nvcc.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/geometry.h"
#include "engine/backend/torch/cuda/kernels/mutants.h"

namespace tandem::cuda {

template <class T>
using Ptr = T*;

// The same memory as words of another type.
template <class Word, class T>
__host__ __device__ const Word* words_of(const T* p) {
  return reinterpret_cast<const Word*>(p);
}

template <class T>
__device__ uintptr_t address_of(const T* p) {
  return reinterpret_cast<uintptr_t>(p);
}

template <class T, int N>
struct alignas(16) SharedArray {
  T data[N];

  __device__ T& operator[](int i) { return data[i]; }

  template <int n>
  __device__ void take(int i, T (&x)[n]) const {
    if constexpr (n * sizeof(T) % sizeof(uint4) == 0) {
      uint4 words[n * sizeof(T) / sizeof(uint4)];
#pragma unroll
      for (int w = 0; w < n * sizeof(T) / sizeof(uint4); ++w) {
        words[w] = reinterpret_cast<const uint4*>(data + i)[w];
      }
      memcpy(x, words, sizeof(x));
    } else {
#pragma unroll
      for (int e = 0; e < n; ++e) x[e] = data[i + e];
    }
  }

  template <int n>
  __device__ void put(int i, const T (&x)[n]) {
    if constexpr (n * sizeof(T) % sizeof(uint4) == 0) {
      uint4 words[n * sizeof(T) / sizeof(uint4)];
      memcpy(words, x, sizeof(x));
#pragma unroll
      for (int w = 0; w < n * sizeof(T) / sizeof(uint4); ++w) {
        reinterpret_cast<uint4*>(data + i)[w] = words[w];
      }
    } else {
#pragma unroll
      for (int e = 0; e < n; ++e) data[i + e] = x[e];
    }
  }
};

// p[i], for memory that is constant and read by one thread block only. Bypasses L1, which then
// keeps data that is reused.
__device__ inline uint4 read_once(const uint4* p, int64_t i) {
  uint4 x;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
      : "l"(p + i));
  return x;
}

// Programmatic dependent launch: a kernel starts while the previous one finishes, if launch()
// enabled it. wait_for_last() waits for the whole previous launch, which has waited for its
// predecessor.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_for_last() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Prefetches into L2, which all multiprocessors share, so that concurrent writes stay visible.
template <class T>
__device__ void prefetch(const T* p, int64_t i) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p + i));
}

__device__ inline void mma_bf16(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ inline void mma_half(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ inline void mma_u8s8(int32_t (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

using Stream = cudaStream_t;

__host__ __device__ constexpr bool mutated(Mutant) { return false; }

// Whether launches overlap on devices that support it.
inline bool launches_overlap = true;

// The current device has compute capability 9.0 or above.
inline bool can_overlap() {
  thread_local int known = -1;
  thread_local bool can = false;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (device != known) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
      return false;
    }
    known = device;
    can = major >= 9;
  }
  return can;
}

// Does nothing for an empty grid. Errors are left to cudaGetLastError().
template <class... P, class... A>
void launch(Stream stream, void (*kernel)(P...), const Geometry& g, A&&... arguments) {
  if (g.blocks() == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(g.x), static_cast<unsigned>(g.y),
                    static_cast<unsigned>(g.z)};
  config.blockDim = {static_cast<unsigned>(g.threads), 1, 1};
  config.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = launches_overlap && can_overlap() ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...));
}

}  // namespace tandem::cuda
