// Device memory and random numbers of the kernels' program. Without nvcc: of the emulated device.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#ifndef __CUDACC__
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"
#endif

namespace tandem::cuda::program {

// 24 random bits of number i of a sequence. Host and device compute the same.
__host__ __device__ inline uint32_t bits_at(uint64_t seed, int64_t i) {
  uint64_t z = (static_cast<uint64_t>(i) + seed * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  z ^= z >> 31;
  z *= 0x94d049bb133111ebu;
  z ^= z >> 29;
  return static_cast<uint32_t>(z >> 40);
}

// A multiple of 1/128 in (-1, 1), exact in 16 bits; root mean square 0.575.
__host__ __device__ inline float number_at(uint64_t seed, int64_t i) {
  return static_cast<float>(static_cast<int>(bits_at(seed, i) % 255) - 127) * 0.0078125f;
}

template <class T>
std::vector<T> numbers(int64_t n, uint64_t seed, float scale = 1) {
  std::vector<T> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    all[static_cast<size_t>(i)] = static_cast<T>(number_at(seed, i) * scale);
  }
  return all;
}

#ifdef __CUDACC__

// Throws the error of a CUDA call.
inline void need(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error) + ": " +
                           cudaGetErrorString(error));
}

inline constexpr int kThreadsOfFill = 256;
inline cudaStream_t stream = nullptr;  // of all launches; created by main()

// Throws the error of a launch.
inline void launched(const char* what) { need(cudaGetLastError(), what); }

// Waits for all launches and throws their error.
inline void finish(const char* what) {
  launched(what);
  need(cudaStreamSynchronize(stream), what);
}

template <class T>
__global__ void fill_kernel(T* to, int64_t n, uint64_t seed, float scale) {
  for (int64_t i = blockIdx.x * int64_t{kThreadsOfFill} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreadsOfFill) {
    to[i] = static_cast<T>(number_at(seed, i) * scale);
  }
}

// A device array. Elements are poisoned: all bits are 1, which is NaN or -1.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t n) : n_(n) {
    need(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
    poison();
  }
  explicit Buffer(const std::vector<T>& from) : Buffer(static_cast<int64_t>(from.size())) {
    write(from);
  }
  // number_at(seed, i) * scale
  Buffer(int64_t n, uint64_t seed, float scale) : Buffer(n) {
    fill_kernel<T><<<2048, kThreadsOfFill, 0, stream>>>(data_, n, seed, scale);
    finish("fill");
  }
  Buffer(Buffer&& from) noexcept { *this = std::move(from); }
  Buffer& operator=(Buffer&& from) noexcept {
    std::swap(data_, from.data_);
    std::swap(n_, from.n_);
    return *this;
  }
  ~Buffer() { static_cast<void>(cudaFree(data_)); }

  int64_t size() const { return n_; }
  size_t bytes() const { return static_cast<size_t>(n_) * sizeof(T); }
  Ptr<T> ptr() const { return data_; }
  T* raw() const { return data_; }
  void poison() {
    need(cudaMemsetAsync(data_, 0xff, bytes(), stream), "cudaMemset");
    finish("poison");
  }
  void write(const std::vector<T>& from) {
    need(cudaMemcpyAsync(data_, from.data(), bytes(), cudaMemcpyHostToDevice, stream), "copy");
    finish("copy to the device");
  }
  std::vector<T> read() const {
    std::vector<T> all(static_cast<size_t>(n_));
    need(cudaMemcpyAsync(all.data(), data_, bytes(), cudaMemcpyDeviceToHost, stream), "copy");
    finish("copy from the device");
    return all;
  }

 private:
  T* data_ = nullptr;
  int64_t n_ = 0;
};

#else

inline Stream stream;
inline void launched(const char* /*what*/) {}
inline void finish(const char* /*what*/) {}

template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t n) : array_("buffer", n) { poison(); }
  explicit Buffer(const std::vector<T>& from) : Buffer(static_cast<int64_t>(from.size())) {
    write(from);
  }
  Buffer(int64_t n, uint64_t seed, float scale) : Buffer(numbers<T>(n, seed, scale)) {}

  int64_t size() const { return array_.size(); }
  size_t bytes() const { return static_cast<size_t>(size()) * sizeof(T); }
  Ptr<T> ptr() const { return array_.ptr(); }
  T* raw() const { return reinterpret_cast<T*>(ptr().memory()->base()); }
  void poison() { std::memset(ptr().memory()->base(), 0xff, ptr().memory()->bytes()); }
  void write(const std::vector<T>& from) {
    for (int64_t i = 0; i < size(); ++i) array_.set(i, from[static_cast<size_t>(i)]);
  }
  std::vector<T> read() const {
    std::vector<T> all;
    for (int64_t i = 0; i < size(); ++i) all.push_back(array_[i]);
    return all;
  }

 private:
  DeviceArray<T> array_;
};

#endif

}  // namespace tandem::cuda::program
