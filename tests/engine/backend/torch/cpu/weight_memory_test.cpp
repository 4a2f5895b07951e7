#include "engine/backend/torch/cpu/weight_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace tandem::cpu {
namespace {

uintptr_t address(const WeightMemory& m) { return reinterpret_cast<uintptr_t>(m.get()); }

// Small allocations are separate, large ones share a stretch or have their own. They never overlap.
TEST(WeightMemory, IsAlignedAndDisjoint) {
  constexpr size_t kMiB = size_t{1} << 20;
  const std::vector<size_t> sizes = {0,        1,         63,       65,        4096,     100'000,
                                     kMiB + 1, 90 * kMiB, 3 * kMiB, 60 * kMiB, 5 * kMiB, 65'536};
  std::vector<WeightMemory> all;
  for (const size_t size : sizes) {
    all.push_back(allocate_weights(size));
    EXPECT_EQ(address(all.back()) % 64, 0u) << size;
    if (size == 0) continue;
    // Checking the first and last byte suffices: overlapping ranges contain an end of each other.
    all.back().get()[0] = static_cast<std::byte>(all.size());
    all.back().get()[size - 1] = static_cast<std::byte>(all.size());
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    EXPECT_EQ(all[i].get()[0], static_cast<std::byte>(i + 1)) << sizes[i];
    EXPECT_EQ(all[i].get()[sizes[i] - 1], static_cast<std::byte>(i + 1)) << sizes[i];
  }
}

TEST(WeightMemory, IsConsecutive) {
  const size_t size = 300'000;
  const WeightMemory a = allocate_weights(size), b = allocate_weights(size);
  EXPECT_EQ(address(b), address(a) + (size + 63) / 64 * 64);
}

// Its last byte can be written, and others keep theirs when it is freed.
TEST(WeightMemory, OfItsOwnIsFreedAlone) {
  for (const size_t size : {size_t{1}, size_t{70'000}, size_t{5'000'000}}) {
    WeightMemory a = allocate_apart(size);
    const WeightMemory b = allocate_apart(size), c = allocate_weights(size);
    EXPECT_EQ(address(a) % 64, 0u) << size;
    for (std::byte* m : {a.get(), b.get(), c.get()}) std::memset(m, 7, size);
    a.reset();
    const WeightMemory next = allocate_apart(size);
    std::memset(next.get(), 8, size);
    for (const WeightMemory* m : {&b, &c}) {
      EXPECT_EQ(std::count(m->get(), m->get() + size, std::byte{7}), static_cast<int64_t>(size));
    }
  }
}

TEST(WeightMemory, StretchLivesUntilItsLastMatrix) {
  const size_t size = 300'000;
  WeightMemory a = allocate_weights(size), b = allocate_weights(size);
  std::memset(b.get(), 7, size);
  a.reset();
  WeightMemory c = allocate_weights(size);
  std::memset(c.get(), 8, size);
  const auto sevens = [&](const WeightMemory& m) {
    return std::count(m.get(), m.get() + size, std::byte{7});
  };
  EXPECT_EQ(sevens(b), static_cast<int64_t>(size));
  // Moved to another owner; allocated by a thread that has ended.
  WeightMemory d = std::move(b);
  std::thread([&] { c = allocate_weights(size); }).join();
  std::memset(c.get(), 9, size);
  EXPECT_EQ(sevens(d), static_cast<int64_t>(size));
  EXPECT_EQ(b, nullptr);  // NOLINT(bugprone-use-after-move)
}

TEST(WeightMemory, ComparesAllWeightsWithTheCaches) {
  const size_t cache = static_cast<size_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  if (cache == 0) GTEST_SKIP() << "the size of the last-level cache is unknown";
  const bool before = weights_exceed_caches();
  WeightMemory small = allocate_weights(100), most = allocate_weights(cache);
  EXPECT_TRUE(weights_exceed_caches());
  most.reset();
  small.reset();
  EXPECT_EQ(weights_exceed_caches(), before);
}

}  // namespace
}  // namespace tandem::cpu
