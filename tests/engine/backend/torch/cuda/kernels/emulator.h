// A CUDA device on a CPU, for tests: kernels of engine/backend/torch/cuda/kernels run here with the
// grids that the device would get.
//
// Every thread of a block is a fiber, and which of those that can go on does so is drawn with a
// seed; blocks run one after another in a drawn order. What is checked: kernels/emulated.h. Memory
// between barriers is watched exactly, so a race is found whatever the order.
//
// One thread of the host at a time may launch.
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

// Orders of threads and blocks from here on.
void seed(uint64_t seed);

// Launches until now.
int64_t launches();

}  // namespace emulator

// An array of the device: exactly as long as it says, aligned as cudaMalloc does. Elements are
// unwritten until the host or a kernel writes them.
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
  operator Ptr<T>() const { return {memory_.get(), 0}; }        // NOLINT: as a device's pointer
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
