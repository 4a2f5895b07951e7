// The emulated device runs kernels like a device, and ends those with faults that a device ignores.
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

#include "engine/backend/torch/cuda/kernels/numbers.h"

namespace tandem::cuda {
namespace {

using emulator::Fault;
using testing::HasSubstr;

std::string fault_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "none";
}

__global__ void sum_blocks(Ptr<int> out, Ptr<const int> in, bool barrier) {
  begin_launch();
  __shared__ SharedArray<int, 4> sums;
  const int sum = warp_sum(static_cast<int>(in[blockIdx.x * blockDim.x + threadIdx.x]));
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  if (barrier) __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

std::vector<int> numbers(int n) {
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

TEST(Emulator, RunsBlocksAndWarpsInAnyOrder) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    emulator::seed(seed);
    const DeviceArray<int> in("in", numbers(3 * 128));
    const DeviceArray<int> out("out", 3);
    launch({}, sum_blocks, {128, 3}, out, in, true);
    for (int b = 0; b < 3; ++b) EXPECT_EQ(out[b], 128 * (128 * b) + 128 * 129 / 2);
  }
}

__global__ void touch_early(Ptr<int> x, bool reads) {
  prefetch(x, threadIdx.x);  // always allowed
  if (reads) {
    if (x[threadIdx.x] > 0) wait_for_last();
  } else if (threadIdx.x != 5) {
    wait_for_last();
  }
  x[threadIdx.x] = 1;
}

TEST(Emulator, DetectsAccessBeforeThePreviousLaunchIsDone) {
  const DeviceArray<int> x("x", numbers(32));
  for (const bool reads : {true, false}) {
    EXPECT_THAT(fault_of([&] { launch({}, touch_early, {32}, x, reads); }),
                testing::AllOf(HasSubstr("x: "), HasSubstr("has not waited for the last launch")));
  }
}

TEST(Emulator, DetectsAMissingBarrierInEveryOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    emulator::seed(seed);
    const DeviceArray<int> in("in", numbers(128));
    const DeviceArray<int> out("out", 1);
    // The sums are read before they are written, or without a barrier.
    EXPECT_THAT(fault_of([&] { launch({}, sum_blocks, {128}, out, in, false); }),
                testing::AnyOf(HasSubstr("where nothing was written"), HasSubstr("race")));
  }
}

// All threads read what thread 0 wrote; in the block `racing` thread 0 then writes it again.
__global__ void write_again(Ptr<int> out, unsigned racing) {
  begin_launch();
  __shared__ SharedArray<int, 1> one;
  if (threadIdx.x == 0) one[0] = 1;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = one[0];
  if (blockIdx.x == racing && threadIdx.x == 0) one[0] = 2;
}

// Shared memory of the other blocks is other memory: their reads do not hide those of this block.
TEST(Emulator, DetectsRacesInEachBlock) {
  constexpr unsigned kBlocks = 3;
  const DeviceArray<int> out("out", 64 * kBlocks);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (unsigned racing = 0; racing <= kBlocks; ++racing) {
      emulator::seed(seed);
      const std::string fault =
          fault_of([&] { launch({}, write_again, {64, kBlocks}, out, racing); });
      EXPECT_THAT(fault, HasSubstr(racing == kBlocks ? "none" : "race"));
    }
  }
}

__global__ void trace_order(std::vector<unsigned>* order) {
  order->push_back(blockIdx.x * blockDim.x + threadIdx.x);
}

TEST(Emulator, OrderFollowsFromTheSeed) {
  std::set<std::vector<unsigned>> orders;
  for (const uint64_t seed : {1, 2, 3, 1, 2, 3}) {
    emulator::seed(seed);
    std::vector<unsigned> order;
    launch({}, trace_order, {64, 2}, &order);
    EXPECT_EQ(std::set<unsigned>(order.begin(), order.end()).size(), 128u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u);
}

__global__ void copy_at(Ptr<int> to, Ptr<const int> from, int shift) {
  begin_launch();
  const int i = static_cast<int>(threadIdx.x);
  to[i] = from[i + shift];
}

TEST(Emulator, DetectsOutOfBoundsAccess) {
  const DeviceArray<int> in("in", numbers(32));
  const DeviceArray<int> out("out", 32);
  const DeviceArray<int> short_out("out", 31);
  const auto copy = [](Ptr<int> to, Ptr<const int> from, int shift) {
    return fault_of([&] { launch({}, copy_at, {32}, to, from, shift); });
  };
  EXPECT_EQ(copy(out, in, 0), "none");
  EXPECT_THAT(copy(out, in, 1), HasSubstr("in: 4 bytes at 128 of 128"));
  EXPECT_THAT(copy(out, in, -1), HasSubstr("in: 4 bytes at -4 of 128"));
  EXPECT_THAT(copy(short_out, in, 0), HasSubstr("out: 4 bytes at 124 of 124"));
  EXPECT_THAT(copy(nullptr, in, 0), HasSubstr("a null pointer"));
}

TEST(Emulator, DetectsUninitializedReads) {
  const DeviceArray<int> in("in", 32);
  const DeviceArray<int> out("out", 32);
  EXPECT_THAT(fault_of([&] { launch({}, copy_at, {32}, out, in, 0); }),
              HasSubstr("where nothing was written"));
  EXPECT_FALSE(out.is_written(0));
}

__global__ void read_as_words(Ptr<const uint4> in, int bytes) {
  begin_launch();
  static_cast<void>(Ptr<const uint4>(in.memory(), bytes)[0]);
}

TEST(Emulator, DetectsMisalignedWords) {
  const DeviceArray<int> in("in", numbers(8));
  const auto read = [&](int bytes) {
    return fault_of([&] { launch({}, read_as_words, {32}, in.as<const uint4>(), bytes); });
  };
  EXPECT_EQ(read(16), "none");
  EXPECT_THAT(read(8), HasSubstr("not aligned"));
}

__global__ void write_one(Ptr<int> to, int by) {
  begin_launch();
  to[static_cast<int>(threadIdx.x) / by] = 1;
}

__global__ void write_block(Ptr<int> to) {
  begin_launch();
  if (threadIdx.x == 0) to[0] = static_cast<int>(blockIdx.x);
}

TEST(Emulator, DetectsRaces) {
  const DeviceArray<int> out("out", 32);
  EXPECT_EQ(fault_of([&] { launch({}, write_one, {32}, out, 1); }), "none");
  EXPECT_EQ(fault_of([&] { launch({}, write_one, {32}, out, 1); }), "none");
  EXPECT_THAT(fault_of([&] { launch({}, write_one, {32}, out, 2); }), HasSubstr("race: written"));
  EXPECT_EQ(fault_of([&] { launch({}, write_block, {32}, out); }), "none");
  EXPECT_THAT(fault_of([&] { launch({}, write_block, {32, 2}, out); }), HasSubstr("race: written"));
}

__global__ void shift_in_place(Ptr<int> x, bool barrier) {
  begin_launch();
  const int i = static_cast<int>(threadIdx.x);
  const int next = x[i + 1];
  if (barrier) __syncthreads();
  x[i] = next;
}

TEST(Emulator, DetectsWriteAfterReadRaces) {
  const DeviceArray<int> x("x", numbers(65));
  EXPECT_EQ(fault_of([&] { launch({}, shift_in_place, {64}, x, true); }), "none");
  EXPECT_EQ(x[63], 65);
  EXPECT_THAT(fault_of([&] { launch({}, shift_in_place, {64}, x, false); }), HasSubstr("race"));
}

// One tile: c = a * b of numbers that encode their position, in PTX's layout.
__global__ void multiply_tiles(Ptr<float> c, bool half, bool all) {
  begin_launch();
  const auto of = [half](int x) {
    return uint32_t{half ? Half(static_cast<float>(x)).bits : BFloat16(static_cast<float>(x)).bits};
  };
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto a = [&](int row, int k) { return of(row + 1) | of(k == 5 ? 2 : 0) << 16; };
  const uint4 own{a(g, 2 * t + 1), a(g + 8, 2 * t + 1), a(g, 2 * t + 9), a(g + 8, 2 * t + 9)};
  const uint32_t b = of(g + 1) | of(100) << 16;
  float sums[4] = {0.5f, 0, 0, 0};
  if (!all && threadIdx.x == 3) return;
  half ? mma_half(sums, own, b, b) : mma_bf16(sums, own, b, b);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

TEST(Emulator, MultipliesTiles) {
  for (const bool half : {false, true}) {
    const DeviceArray<float> c("c", 16 * 8);
    launch({}, multiply_tiles, {32}, c, half, true);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        const float added = row < 8 && column % 2 == 0 ? 0.5f : 0.0f;
        // Eight even inputs with row + 1 and column + 1, and input 5 with 2 and 100.
        const auto sum = static_cast<float>(8 * (row + 1) * (column + 1) + 200);
        EXPECT_EQ(c[row * 8 + column], sum + added);
      }
    }
    EXPECT_THAT(fault_of([&] { launch({}, multiply_tiles, {32}, c, half, false); }),
                HasSubstr("divergence"));
  }
}

enum class Meeting { kAll, kSomeLeave, kTwoPlaces, kHalfWarp, kQueuesLeave };

__global__ void meet(Meeting how) {
  const unsigned t = threadIdx.x;
  if (how == Meeting::kSomeLeave && t >= 40) return;
  if (how == Meeting::kQueuesLeave && t == 7) return;
  if (how == Meeting::kTwoPlaces && t == 3) {
    __syncthreads();
  } else if (how == Meeting::kHalfWarp || how == Meeting::kQueuesLeave) {
    if (t % 2 == 0 || how == Meeting::kQueuesLeave) static_cast<void>(__shfl_xor_sync(~0u, 1, 1));
  } else {
    __syncthreads();
  }
}

TEST(Emulator, DetectsDivergence) {
  const auto fault = [](Meeting how) { return fault_of([&] { launch({}, meet, {64}, how); }); };
  EXPECT_EQ(fault(Meeting::kAll), "none");
  EXPECT_THAT(fault(Meeting::kSomeLeave), HasSubstr("24 of 64 threads have ended"));
  EXPECT_THAT(fault(Meeting::kTwoPlaces), HasSubstr("threads wait for each other at"));
  EXPECT_THAT(fault(Meeting::kHalfWarp), HasSubstr("divergence"));
  EXPECT_THAT(fault(Meeting::kQueuesLeave), HasSubstr("with 30 others"));
  EXPECT_EQ(fault(Meeting::kAll), "none") << "a launch that ended badly leaves nothing behind";
}

__global__ void take_shared(bool more) {
  __shared__ SharedArray<double, 6144> all;
  __shared__ SharedArray<char, 1> one;
  if (threadIdx.x == 0) all[0] = 1;
  if (threadIdx.x == 0 && more) one[0] = 1;
}

TEST(Emulator, RejectsInvalidLaunches) {
  const auto fault = [](const Geometry& g, bool more = false) {
    return fault_of([&] { launch({}, take_shared, g, more); });
  };
  EXPECT_EQ(fault({32, 0}), "none");
  EXPECT_EQ(fault({1024}), "none");
  EXPECT_THAT(fault({1056}), HasSubstr("a block of 1056 threads"));
  EXPECT_THAT(fault({20}), HasSubstr("whole warps"));
  EXPECT_THAT(fault({32, 1, 65536}), HasSubstr("a grid of 1 x 65536 x 1"));
  EXPECT_THAT(fault({32}, true), HasSubstr("49153 bytes of shared memory"));
}

TEST(Numbers, RoundToNearestEven) {
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(1.00390625f).bits, 0x3f80);  // a tie: to even
  EXPECT_EQ(BFloat16(1.01171875f).bits, 0x3f82);
  EXPECT_EQ(Half(1.0f).bits, 0x3c00);
  EXPECT_EQ(Half(65520.f).bits, 0x7c00);
  EXPECT_EQ(static_cast<float>(Half(0.333251953125f)), 0.333251953125f);
  EXPECT_NE(static_cast<float>(BFloat16(NAN)), static_cast<float>(BFloat16(NAN)));
}

}  // namespace
}  // namespace tandem::cuda
