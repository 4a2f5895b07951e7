#include "engine/base/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace tandem {
namespace {

// While it lives, no thread can start: its stack would exceed the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_init(&before_);
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 48);
    set_ = pthread_setattr_default_np(&huge) == 0;
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  bool set() const { return set_; }

 private:
  pthread_attr_t before_;
  bool set_ = false;
};

TEST(StartThread, RunsTheFunction) {
  int ran = 0;
  start_thread("a test", [&ran] { ++ran; }).join();
  EXPECT_EQ(ran, 1);
}

TEST(StartThread, AFailedStartNamesTheThread) {
  const NoThreads none;
  ASSERT_TRUE(none.set());
  try {
    start_thread("a test", [] {}).join();
    FAIL() << "it started";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("cannot start the thread for a test: "));
  }
}

// The third copy lets no further thread start.
struct Runner {
  explicit Runner(std::atomic<bool>* s) : stopped(s) {}
  Runner(const Runner& from) : stopped(from.stopped), copies(from.copies), none(from.none) {
    if (++*copies == 3) none->emplace();
  }
  void operator()() const { stopped->wait(false); }

  std::atomic<bool>* stopped;
  std::shared_ptr<int> copies = std::make_shared<int>(0);
  std::shared_ptr<std::optional<NoThreads>> none = std::make_shared<std::optional<NoThreads>>();
};

TEST(StartThreads, AFailedStartEndsTheOthers) {
  std::atomic<bool> stopped{false};
  std::vector<std::thread> threads;
  const Runner runner(&stopped);
  EXPECT_THROW(start_threads(
                   "a test", 8, runner,
                   [&stopped] {
                     stopped.store(true);
                     stopped.notify_all();
                   },
                   &threads),
               std::system_error);
  EXPECT_TRUE(stopped.load());
  ASSERT_FALSE(threads.empty());
  EXPECT_LT(threads.size(), 8U);
  for (const std::thread& thread : threads) EXPECT_FALSE(thread.joinable());
}

}  // namespace
}  // namespace tandem
