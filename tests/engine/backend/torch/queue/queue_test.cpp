// Rows copied between device queues: every event and wait is needed for their order.
#include "engine/backend/torch/queue/queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "engine/backend/torch/queue/readback.h"
#include "engine/backend/torch/queue/staging.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"

namespace tandem {
namespace {

constexpr int kPages = 4;

// A device queue with pages of one number each.
struct Lane {
  explicit Lane(LazyDevices& devices)
      : device_queue(devices.queue()),
        staging(device_queue.queue.get()),
        readback(device_queue.queue.get()),
        memory(device_queue.queue->device_memory(kPages * sizeof(int32_t))),
        pages(reinterpret_cast<int32_t*>(memory.get())) {
    device_queue.queue->zero(pages, kPages * sizeof(int32_t));
  }

  // numbers go to pages [first, ..), by a batch that the host does not wait for.
  void put_write(int first, const std::vector<int32_t>& numbers) {
    staging.begin(64);
    const int32_t* const placed = staging.place(numbers);
    staging.upload();
    device_queue.queue->launch([to = pages + first, placed, n = numbers.size()] {
      std::memcpy(to, placed, n * sizeof(int32_t));
    });
    device_queue.queue->record(*device_queue.done);
  }
  void write(int first, const std::vector<int32_t>& numbers) {
    put_write(first, numbers);
    device_queue.finish();
  }

  // Pages of another device queue.
  void put_pull(const Lane& from, int page, int to) {
    follow(&device_queue, &from.device_queue);
    device_queue.queue->launch([f = from.pages + page, t = pages + to] { *t = *f; });
  }

  std::vector<int32_t> read() {
    const std::byte* const host = readback.bring(pages, kPages * sizeof(int32_t));
    device_queue.queue->synchronize();
    std::vector<int32_t> all(kPages);
    std::memcpy(all.data(), host, kPages * sizeof(int32_t));
    return all;
  }

  const DeviceQueue device_queue;
  Staging staging;
  Readback readback;
  std::shared_ptr<std::byte> memory;
  int32_t* pages;
};

enum class Fault : uint8_t {
  kNone,
  kNoEvent,         // the target does not wait for the source's batch
  kNoRecord,        // the source's batch is not marked
  kFreedTooEarly,   // the source's pages are given away before the target's batch is done
  kStagingTooEarly  // the next batch is staged while the last one waits
};

// A worker's pages go to the main device queue while the worker's next batch is put together, as
// PPD's do.
std::vector<int32_t> pulled(LazyDevices& devices, Fault fault) {
  Lane worker(devices);
  Lane main(devices);
  if (fault == Fault::kNoEvent) devices.skip_all(QueueCall::kWait, 1);
  if (fault == Fault::kNoRecord) devices.skip_all(QueueCall::kRecord, 0);
  worker.put_write(1, {10, 11});
  if (fault == Fault::kStagingTooEarly) worker.put_write(3, {99});
  main.put_pull(worker, 1, 0);
  main.put_pull(worker, 2, 3);
  if (fault != Fault::kFreedTooEarly) main.device_queue.finish();
  worker.write(1, {20, 21});  // another sequence's
  main.write(2, {30});
  return main.read();
}

TEST(DeviceQueue, RowsMoveBetweenQueuesInOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const bool eager : {false, true}) {
      LazyDevices devices({.seed = seed, .eager = eager});
      EXPECT_EQ(pulled(devices, Fault::kNone), (std::vector<int32_t>{10, 0, 30, 11})) << seed;
      EXPECT_EQ(devices.fault(), "");
    }
  }
}

TEST(DeviceQueue, MutationsAreFound) {
  for (const Fault fault :
       {Fault::kNoEvent, Fault::kNoRecord, Fault::kFreedTooEarly, Fault::kStagingTooEarly}) {
    LazyDevices devices({});
    bool found = false;
    try {
      found = pulled(devices, fault) != std::vector<int32_t>{10, 0, 30, 11};
    } catch (const std::runtime_error&) {
      found = true;
    }
    EXPECT_TRUE(found) << static_cast<int>(fault);
  }
}

TEST(DeviceQueue, WithoutAQueueAllHappensAtOnce) {
  int done = 0;
  launch(nullptr, [&] { ++done; });
  EXPECT_EQ(done, 1);
  follow(nullptr, nullptr);
  LazyDevices devices({});
  const DeviceQueue other(devices.queue());
  other.queue->launch([&] { ++done; });
  other.queue->record(*other.done);
  follow(nullptr, &other);  // the host waits
  EXPECT_EQ(done, 2);
}

TEST(DeviceQueue, QueuesHaveTheirOwnThreads) {
  LazyDevices devices({.eager = true});
  Lane a(devices);
  Lane b(devices);
  a.write(0, {1, 2, 3, 4});
  const auto turn = [](Lane& device_queue, const Lane& other) {
    for (int i = 0; i < 50; ++i) {
      device_queue.put_pull(other, 3, 2);
      device_queue.device_queue.finish();
      device_queue.write(0, {i, i});
    }
  };
  std::thread thread([&] { turn(a, b); });
  turn(b, a);
  thread.join();
  EXPECT_EQ(a.read()[0], 49);
  EXPECT_EQ(b.read()[1], 49);
  EXPECT_EQ(devices.fault(), "");
}

}  // namespace
}  // namespace tandem
