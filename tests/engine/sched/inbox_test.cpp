#include "engine/sched/inbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(Inbox, GivesAllInItsOrder) {
  Inbox inbox;
  EXPECT_TRUE(inbox.take().empty());
  inbox.post(Inbox::Stop{1, absl::OkStatus()});
  inbox.post(Inbox::Pause{2, true});
  inbox.post(Inbox::Submit(3));
  const auto messages = inbox.take();
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(std::get<Inbox::Stop>(messages[0]).id, 1U);
  EXPECT_EQ(std::get<Inbox::Pause>(messages[1]).id, 2U);
  EXPECT_EQ(std::get<Inbox::Submit>(messages[2]).size(), 3U);
  EXPECT_TRUE(inbox.take().empty());
}

TEST(Inbox, DoesNotSleepWhenThereIsAReasonNotTo) {
  const VirtualClock clock;  // does not move, so a timed wait would never end
  Inbox inbox;
  EXPECT_TRUE(inbox.wait(clock.now(), clock)) << "the time has come";
  inbox.post(Inbox::Pause{1, true});
  EXPECT_TRUE(inbox.wait(kNever, clock)) << "there is a message";
  inbox.take();
  inbox.quit();
  EXPECT_FALSE(inbox.wait(kNever, clock));
  EXPECT_FALSE(inbox.wait(clock.now(), clock)) << "for good";
}

TEST(Inbox, AMessageWakesTheSleeper) {
  const VirtualClock clock;
  Inbox inbox;
  std::thread sender([&] { inbox.post(Inbox::Pause{7, true}); });
  EXPECT_TRUE(inbox.wait(kNever, clock));
  EXPECT_EQ(std::get<Inbox::Pause>(inbox.take().at(0)).id, 7U);
  sender.join();
}

}  // namespace
}  // namespace tandem
