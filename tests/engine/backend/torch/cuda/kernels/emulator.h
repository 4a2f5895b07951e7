// An emulated CUDA device for tests: runs the kernels of engine/backend/torch/cuda/kernels with the
// device's grids.
//
// Each thread of a block is a fiber. The next fiber is chosen at random with a seed, and blocks run
// one after another in random order. The checks are listed in kernels/emulated.h. Memory accesses
// between barriers are tracked exactly, so races are detected in any order of execution.
//
// Only one host thread at a time may launch kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/cuda/kernels/platform.h"

namespace tandem::cuda {
namespace emulator {

// Sets the seed of the following launches.
void seed(uint64_t seed);

// Number of launches so far.
int64_t launches();

}  // namespace emulator

// A device array with exact bounds and cudaMalloc's alignment. Elements are uninitialized until
// written by the host or a kernel.
template <class T>
class DeviceArray {
 public:
  DeviceArray(std::string name, int64_t n)
      : n_(n),
        bytes_(new(std::align_val_t(256)) std::byte[static_cast<size_t>(n) * sizeof(T)]),
        memory_(std::make_unique<emulator::Memory>(
            std::move(name), bytes_.get(), static_cast<size_t>(n) * sizeof(T),
            std::min<size_t>(sizeof(T), 4), emulator::Memory::Kind::kGlobal)) {}
  template <class From>
  DeviceArray(std::string name, const std::vector<From>& from)
      : DeviceArray(std::move(name), static_cast<int64_t>(from.size())) {
    for (int64_t i = 0; i < n_; ++i) set(i, static_cast<T>(from[static_cast<size_t>(i)]));
  }

  int64_t size() const { return n_; }
  operator Ptr<T>() const { return {memory_.get(), 0}; }        // NOLINT: like a device pointer
  operator Ptr<const T>() const { return {memory_.get(), 0}; }  // NOLINT
  Ptr<T> ptr() const { return *this; }
  template <class Word>
  Ptr<Word> as() const {
    return {memory_.get(), 0};
  }

  void set(int64_t i, T x) const {
    const int64_t at = i * static_cast<int64_t>(sizeof(T));
    std::memcpy(bytes_.get() + at, &x, sizeof(T));
    memory_->written_by_host(at, sizeof(T));
  }
  bool is_written(int64_t i) const {
    return memory_->is_written(i * static_cast<int64_t>(sizeof(T)));
  }
  T operator[](int64_t i) const {
    T x;
    std::memcpy(&x, bytes_.get() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return x;
  }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (int64_t i = 0; i < n_; ++i) all.push_back(static_cast<double>((*this)[i]));
    return all;
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { operator delete[](bytes, std::align_val_t(256)); }
  };
  int64_t n_;
  std::unique_ptr<std::byte[], Free> bytes_;
  std::unique_ptr<emulator::Memory> memory_;
};

}  // namespace tandem::cuda
