// Turns of passes on one cache, and of passes that read it as their memory.
#include "engine/cache/pass_order.h"

#include <gtest/gtest.h>

namespace tandem::test {
namespace {

TEST(PassOrder, APassWaitsForEarlierOnes) {
  PassOrder order;
  EXPECT_TRUE(order.idle());
  const int first = order.begin_pass(), second = order.begin_pass();
  EXPECT_TRUE(order.all_launched_before(first));
  EXPECT_FALSE(order.all_launched_before(second));
  order.launch_pass();
  EXPECT_TRUE(order.all_launched_before(second));
  EXPECT_FALSE(order.all_done_before(second));
  order.take_back_pass();
  EXPECT_FALSE(order.all_launched_before(second));
  order.launch_pass();
  order.end_pass();
  EXPECT_TRUE(order.all_done_before(second));
  EXPECT_FALSE(order.idle());
  order.launch_pass();
  order.end_pass();
  EXPECT_TRUE(order.idle());
}

TEST(PassOrder, AReaderWaitsForTheRowsAndKeepsTheCacheBusy) {
  PassOrder order;
  order.begin_pass();
  const int reader = order.begin_reader();
  EXPECT_FALSE(order.all_launched_before(reader));
  order.launch_pass();
  EXPECT_TRUE(order.all_launched_before(reader));
  order.end_pass();
  EXPECT_TRUE(order.all_done_before(reader));
  EXPECT_FALSE(order.idle()) << "the reader is under way";
  order.end_reader();
  EXPECT_TRUE(order.idle());
}

}  // namespace
}  // namespace tandem::test
