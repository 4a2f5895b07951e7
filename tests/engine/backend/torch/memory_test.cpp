// Use of free memory.
#include "engine/backend/torch/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tandem {
namespace {

// Device queues whose GPUs have some memory free, and weights that take some.
struct Machine {
  std::map<int, int64_t> free;  // by GPU
  std::vector<int64_t> given;   // the budget of each device queue, in their order

  PackableDevice device_queue(int gpu, int64_t bytes) {
    return {.gpu = gpu,
            .free_bytes = [this, gpu] { return free.at(gpu); },
            .pack = [this, gpu, bytes](int64_t most) -> absl::StatusOr<int64_t> {
              given.push_back(most);
              if (bytes > most) return 0;
              free.at(gpu) -= bytes;
              return bytes;
            }};
  }
};

TEST(PackInTurn, AllQueuesOfAGpuShareHalfOfFreeMemory) {
  Machine m{.free = {{0, 101}, {1, 60}}};
  EXPECT_TRUE(pack_in_turn({m.device_queue(0, 30), m.device_queue(1, 31), m.device_queue(0, 21),
                            m.device_queue(0, 20)})
                  .ok());
  EXPECT_THAT(m.given, testing::ElementsAre(50, 30, 20, 20));
  EXPECT_EQ(m.free[0], 51);
  EXPECT_EQ(m.free[1], 60);
}

TEST(PackInTurn, EndsWithTheFirstFailure) {
  Machine m{.free = {{0, 100}}};
  PackableDevice lost = m.device_queue(0, 1);
  lost.pack = [](int64_t) { return absl::UnavailableError("lost"); };
  EXPECT_EQ(pack_in_turn({lost, m.device_queue(0, 1)}).message(), "lost");
  EXPECT_TRUE(m.given.empty());
}

// Bytes of this process in memory that are no file's.
int64_t resident_bytes() {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word) {
    int64_t kilobytes = 0;
    if (word == "RssAnon:" && in >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

TEST(ReturnFreedMemory, WhatIsFreedBelowWhatIsHeldGoesBackToTheSystem) {
  constexpr size_t kBlock = 4000, kBlocks = 16'000;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique_for_overwrite<char[]>(kBlock));
    std::memset(blocks.back().get(), 1, kBlock);
  }
  const std::unique_ptr<char[]> last = std::move(blocks.back());  // the heap cannot shrink
  blocks.clear();
  const int64_t before = resident_bytes();
  return_freed_memory();
  EXPECT_LT(resident_bytes(), before - int64_t{kBlock * kBlocks / 2});
}

}  // namespace
}  // namespace tandem
