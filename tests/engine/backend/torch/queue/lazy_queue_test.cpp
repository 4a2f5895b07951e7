// Lazy queues: they run commands as late as possible, and detect the host's faults.
#include "tests/engine/backend/torch/queue/lazy_queue.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tandem {
namespace {

TEST(LazyQueue, RunsNothingBeforeAWait) {
  LazyDevices devices({});
  const auto queue = devices.queue();
  std::string done;
  queue->launch([&] { done += "a"; });
  queue->launch([&] { done += "b"; });
  EXPECT_EQ(done, "");
  queue->synchronize();
  EXPECT_EQ(done, "ab");
}

TEST(LazyQueue, GoesAsFarAsAnEventAsks) {
  LazyDevices devices({});
  const auto one = devices.queue();
  const auto other = devices.queue();
  std::string done;
  const auto event = one->event();
  other->wait(*event);  // was never recorded: nothing to wait for
  one->launch([&] { done += "a"; });
  one->record(*event);
  one->launch([&] { done += "b"; });
  other->launch([&] { done += "c"; });
  other->synchronize();
  EXPECT_EQ(done, "c");
  other->wait(*event);
  other->launch([&] { done += "d"; });
  other->synchronize();
  EXPECT_EQ(done, "cad");
  event->synchronize();
  EXPECT_EQ(done, "cad");
  one->synchronize();
  EXPECT_EQ(done, "cadb");
}

TEST(LazyQueue, TakesOtherOrdersWithOtherSeeds) {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    LazyDevices devices({.seed = seed, .eager = true});
    const auto a = devices.queue();
    const auto b = devices.queue();
    std::string done;
    const auto event = a->event();
    a->launch([&] { done += "a"; });
    a->record(*event);
    a->launch([&] { done += "A"; });
    b->launch([&] { done += "b"; });
    b->wait(*event);
    b->launch([&] { done += "B"; });
    b->synchronize();
    a->synchronize();
    EXPECT_LT(done.find('a'), done.find('A'));
    EXPECT_LT(done.find('b'), done.find('B'));
    EXPECT_LT(done.find('a'), done.find('B'));
    orders.insert(done);
  }
  EXPECT_EQ(orders.size(), 5u);  // abAB abBA aAbB baAB baBA
}

TEST(LazyQueueDeathTest, MemoryOfADeviceIsClosedToTheHost) {
  LazyDevices devices({});
  const auto queue = devices.queue();
  const auto memory = queue->device_memory(100);
  volatile std::byte* const at = memory.get();
  EXPECT_DEATH(*at = std::byte{1}, "the host touches memory of a device");
  EXPECT_DEATH(static_cast<void>(*at), "the host touches memory of a device");
  queue->zero(memory.get(), 100);
  queue->launch([at] { at[3] = std::byte{7}; });
  queue->synchronize();
  const std::vector<std::byte> seen = devices.look(memory.get(), 100);
  EXPECT_EQ(seen[3], std::byte{7});
  EXPECT_EQ(seen[99], std::byte{0});
}

TEST(LazyQueue, SeesHostMemoryThatChangesTooEarly) {
  LazyDevices devices({});
  const auto queue = devices.queue();
  const auto host = queue->host_memory(8);
  const auto device = queue->device_memory(8);
  host.get()[5] = std::byte{1};
  queue->copy(device.get(), host.get(), 8);
  host.get()[5] = std::byte{2};
  EXPECT_THROW(queue->synchronize(), std::runtime_error);
  EXPECT_NE(devices.fault().find("had yet to read"), std::string::npos) << devices.fault();
  queue->launch([] {});
  EXPECT_THROW(queue->synchronize(), std::runtime_error) << "nothing happens any more";
}

TEST(LazyQueue, SeesWritesToTheDestinationOfACopy) {
  LazyDevices devices({});
  const auto queue = devices.queue();
  const auto host = queue->host_memory(8);
  const auto device = queue->device_memory(8);
  queue->copy(host.get(), device.get(), 8);
  host.get()[0] = std::byte{2};
  EXPECT_THROW(queue->synchronize(), std::runtime_error);
  EXPECT_NE(devices.fault().find("had yet to write"), std::string::npos) << devices.fault();
}

TEST(LazyQueue, ReplaysWhatWasCaptured) {
  LazyDevices devices({});
  const auto queue = devices.queue();
  std::string done;
  const auto graph = queue->capture([&] { done += "g"; });
  queue->synchronize();
  EXPECT_EQ(done, "") << "nothing was put on the queue";
  queue->launch([&] { done += "a"; });
  queue->replay(*graph);
  queue->launch([&] { done += "b"; });
  queue->replay(*graph);
  EXPECT_EQ(done, "");
  queue->synchronize();
  EXPECT_EQ(done, "agbg");
  devices.skip(QueueCall::kReplay, 0);
  queue->replay(*graph);
  queue->synchronize();
  EXPECT_EQ(done, "agbg");
  devices.fail(QueueCall::kCapture, 0, [] { throw std::bad_alloc(); });
  EXPECT_THROW(queue->capture([] {}), std::bad_alloc);
}

TEST(LazyQueue, SkipsAndFailsAsPlanned) {
  LazyDevices devices({});
  const auto queue = devices.queue();
  int done = 0;
  devices.skip(QueueCall::kLaunch, 1);
  for (int i = 0; i < 3; ++i) queue->launch([&] { ++done; });
  queue->synchronize();
  EXPECT_EQ(done, 2);
  devices.fail(QueueCall::kLaunch, 0, [] { throw std::bad_alloc(); });
  EXPECT_THROW(queue->launch([] {}), std::bad_alloc);
  queue->launch([&] { ++done; });
  devices.fail(QueueCall::kSynchronize, 1, [] { throw std::runtime_error("gone"); }, true);
  queue->synchronize();
  EXPECT_EQ(done, 3);
  EXPECT_THROW(queue->synchronize(), std::runtime_error);
  EXPECT_THROW(queue->launch([] {}), std::runtime_error);
  EXPECT_EQ(devices.calls()[static_cast<size_t>(QueueCall::kLaunch)], 6);
}

}  // namespace
}  // namespace tandem
