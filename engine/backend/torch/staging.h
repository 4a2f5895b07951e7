// Host arrays where kernels can read them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace tandem {

// On CPU the arrays themselves, which must outlive the batch. On CUDA they are gathered in pinned
// memory of a fixed address and go over in one copy.
class Staging {
 public:
  explicit Staging(at::Device device) : device_(device) {}

  // Starts a batch with arrays of at most `bytes` together. REQUIRES: the last batch is done.
  void begin(size_t bytes);

  // Where the kernels of this batch find the array; its contents are there after upload().
  template <class T>
  const T* place(const std::vector<T>& array) {
    if (device_.is_cpu() || array.empty()) return array.data();
    return static_cast<const T*>(place_bytes(array.data(), array.size() * sizeof(T)));
  }

  void upload();

 private:
  const void* place_bytes(const void* data, size_t bytes);

  at::Device device_;
  at::Tensor pinned_, on_device_;  // [capacity] bytes
  size_t used_ = 0;
};

}  // namespace tandem
