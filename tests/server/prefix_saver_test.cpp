#include "server/prefix_saver.h"

#include <gtest/gtest.h>

#include <future>

namespace tandem {
namespace {

TEST(PrefixSaver, SavesOnceMoreBeforeItEnds) {
  int saves = 0;
  {
    PrefixSaver saver([&] { ++saves; }, std::chrono::hours(1));
    saver.finish();
    saver.join();
    EXPECT_EQ(saves, 1);
    saver.finish();
  }
  EXPECT_EQ(saves, 1);
}

TEST(PrefixSaver, SavesAtIntervals) {
  int saves = 0;
  std::promise<void> thrice;
  PrefixSaver saver(
      [&] {
        if (++saves == 3) thrice.set_value();
      },
      std::chrono::microseconds(1));
  thrice.get_future().wait();
  saver.join();
  EXPECT_GE(saves, 4) << "the last one";
}

// The server drains while the last save is under way.
TEST(PrefixSaver, FinishDoesNotWait) {
  std::promise<void> gate;
  bool saved = false;
  PrefixSaver saver(
      [&] {
        gate.get_future().wait();
        saved = true;
      },
      std::chrono::hours(1));
  saver.finish();
  gate.set_value();
  saver.join();
  EXPECT_TRUE(saved);
}

}  // namespace
}  // namespace tandem
