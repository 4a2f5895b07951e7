// Memory that is read after a product of quantized weights, such as LoRA adapters: the product's
// kernels prefetch it. Products of several groups of rows are limited by arithmetic, and only the
// first group waits for weights. Results do not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::cpu {

class ReadAhead {
 public:
  void clear() {
    stretches_.clear();
    bytes_ = 0;
  }
  void add(std::span<const std::byte> memory) {
    if (memory.empty()) return;
    stretches_.push_back({memory.data(), bytes_});
    bytes_ += static_cast<int64_t>(memory.size());
  }
  bool empty() const { return bytes_ == 0; }

  // Part i of n equal ones. Its end may lie behind its stretch.
  std::span<const std::byte> part(int64_t i, int64_t n) const {
    const int64_t first = bytes_ * i / n;
    const auto bytes = static_cast<size_t>(bytes_ * (i + 1) / n - first);
    auto stretch = stretches_.end() - 1;
    while (stretch->before > first) --stretch;
    return {stretch->begin + (first - stretch->before), bytes};
  }

 private:
  struct Stretch {
    const std::byte* begin;
    int64_t before;  // bytes of the stretches before it
  };
  std::vector<Stretch> stretches_;
  int64_t bytes_ = 0;
};

// What the next product of the calling thread prefetches. Changed by its caller before the product,
// which empties it.
ReadAhead& read_ahead();

}  // namespace tandem::cpu
