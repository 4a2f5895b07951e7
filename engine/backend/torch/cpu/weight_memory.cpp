#include "engine/backend/torch/cpu/weight_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace tandem::cpu {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kStretch = size_t{64} << 20;  // address space; memory is committed on first touch
// Smaller allocations fit into caches, and clearing a huge page for them takes longer.
constexpr size_t kLeast = size_t{64} << 10;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::atomic<size_t> allocated{0};  // bytes of all stretches

struct Stretch {
  Stretch(size_t alignment, size_t bytes)
      : size(bytes), data(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes))) {
    if (data == nullptr) throw std::bad_alloc();
    allocated.fetch_add(size, std::memory_order_relaxed);
  }
  ~Stretch() {
    allocated.fetch_sub(size, std::memory_order_relaxed);
    std::free(data);
  }
  Stretch(const Stretch&) = delete;
  Stretch& operator=(const Stretch&) = delete;

  const size_t size;
  std::byte* const data;
  size_t used = 0;
};

}  // namespace

WeightMemory allocate_weights(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), kLine);
  if (bytes < kLeast) {
    const auto own = std::make_shared<Stretch>(kLine, bytes);
    return {own->data, {own}};
  }
  // Per thread, so that threads of different NUMA nodes do not share pages.
  thread_local std::weak_ptr<Stretch> last;
  std::shared_ptr<Stretch> stretch = last.lock();
  if (stretch == nullptr || stretch->size - stretch->used < bytes) {
    const size_t size = round_up(std::max(bytes, kStretch), kHugePage);
    stretch = std::make_shared<Stretch>(kHugePage, size);
    madvise(stretch->data, size, MADV_HUGEPAGE);
    last = stretch;
  }
  std::byte* const at = stretch->data + stretch->used;
  stretch->used += bytes;
  return {at, {stretch}};
}

WeightMemory allocate_apart(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), kLine);
  if (bytes < kHugePage) {
    const auto own = std::make_shared<Stretch>(kLine, bytes);
    return {own->data, {own}};
  }
  const auto own = std::make_shared<Stretch>(kHugePage, round_up(bytes, kHugePage));
  // Whole huge pages only: the rest takes small ones, so that no memory is added.
  madvise(own->data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return {own->data, {own}};
}

bool weights_exceed_caches() {
  static const auto kCache = static_cast<size_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  return allocated.load(std::memory_order_relaxed) > kCache;
}

}  // namespace tandem::cpu
