#include "engine/backend/torch/queue/staging.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/backend/torch/queue/readback.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"

namespace tandem {
namespace {

std::vector<int32_t> counted(int n, int first) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), first);
  return all;
}

TEST(Staging, WithoutAQueueArraysStayWhereTheyAre) {
  Staging staging(nullptr);
  const std::vector<int32_t> numbers = counted(5, 0);
  staging.begin(100);
  EXPECT_EQ(staging.place(numbers), numbers.data());
  staging.upload();
}

// Batches of several sizes: kernels sum the arrays at the given addresses.
std::vector<int64_t> sums_of_batches(LazyDevices& devices) {
  const DeviceQueue device_queue(devices.queue());
  Staging staging(device_queue.queue.get());
  Readback readback(device_queue.queue.get());
  const auto sum = device_queue.queue->device_memory(sizeof(int64_t));
  std::vector<int64_t> sums;
  for (const int n : {3, 40, 7, 200, 40}) {
    const std::vector<int32_t> a = counted(n, 100 * n);
    const std::vector<int64_t> b(static_cast<size_t>(n % 5), n);
    staging.begin(a.size() * sizeof(a[0]) + b.size() * sizeof(b[0]) + 32);
    const int32_t* const placed_a = staging.place(a);
    const int64_t* const placed_b = staging.place(b);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(placed_a) % 16, 0u);
    staging.upload();
    auto* const to = reinterpret_cast<int64_t*>(sum.get());
    device_queue.queue->launch([=, na = a.size(), nb = b.size()] {
      *to = std::accumulate(placed_a, placed_a + na, int64_t{0});
      for (size_t i = 0; i < nb; ++i) *to += placed_b[i];
    });
    const std::byte* const back = readback.bring(to, sizeof(int64_t));
    device_queue.queue->synchronize();
    int64_t got = 0;
    std::memcpy(&got, back, sizeof(got));
    sums.push_back(got);
    device_queue.finish();
  }
  return sums;
}

std::vector<int64_t> wanted() {
  std::vector<int64_t> sums;
  for (const int64_t n : {3, 40, 7, 200, 40}) {
    sums.push_back(n * 100 * n + n * (n - 1) / 2 + n % 5 * n);
  }
  return sums;
}

TEST(Staging, KernelsFindWhatWasPlaced) {
  LazyDevices devices({});
  EXPECT_EQ(sums_of_batches(devices), wanted());
  EXPECT_EQ(devices.fault(), "");
}

// The n-th call of a kind left out: what must be seen, and what another call makes up for.
TEST(Staging, EveryCallThatIsLeftOutIsSeen) {
  LazyDevices clean({});
  sums_of_batches(clean);
  int seen = 0;
  int made_up = 0;
  for (const QueueCall call : {QueueCall::kCopy, QueueCall::kLaunch, QueueCall::kSynchronize}) {
    for (int n = 0; n < clean.calls()[static_cast<size_t>(call)]; ++n) {
      LazyDevices devices({});
      devices.skip(call, n);
      bool wrong = false;
      try {
        wrong = sums_of_batches(devices) != wanted();
      } catch (const std::runtime_error&) {
        wrong = true;
      }
      // Each batch waits twice: for what is read, and at its end, when nothing is left to be done.
      EXPECT_EQ(wrong, devices.skipped_something()) << name_of(call) << " " << n;
      ++(wrong ? seen : made_up);
    }
  }
  EXPECT_EQ(seen, 20);
  EXPECT_EQ(made_up, 5);
}

TEST(Staging, UsedAgainTooEarlyIsSeen) {
  LazyDevices devices({});
  const auto queue = devices.queue();
  Staging staging(queue.get());
  staging.begin(100);
  staging.place(counted(5, 0));
  staging.upload();
  staging.begin(100);  // and the queue has not come there yet
  staging.place(counted(5, 1));
  staging.upload();
  EXPECT_THROW(queue->synchronize(), std::runtime_error);
  EXPECT_NE(devices.fault(), "");
}

}  // namespace
}  // namespace tandem
