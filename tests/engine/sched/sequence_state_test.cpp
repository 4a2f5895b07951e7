// All transitions of sequence states.
#include "engine/sched/sequence_state.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace tandem {
namespace {

TEST(SequenceState, OnlyTheseFollow) {
  using enum SequenceState;
  const std::set<std::pair<SequenceState, SequenceState>> legal = {
      {kWaiting, kRunning}, {kWaiting, kFollowing}, {kFollowing, kRunning}, {kRunning, kPaused},
      {kPaused, kRunning},  {kRunning, kHeld},      {kPaused, kHeld},       {kHeld, kPaused},
      {kHeld, kRunning},    {kWaiting, kEnding},    {kFollowing, kEnding},  {kRunning, kEnding},
      {kPaused, kEnding},   {kHeld, kEnding},
  };
  for (int a = 0; a < kSequenceStates; ++a) {
    for (int b = 0; b < kSequenceStates; ++b) {
      const auto before = static_cast<SequenceState>(a), next = static_cast<SequenceState>(b);
      EXPECT_EQ(may_follow(before, next), legal.contains({before, next}))
          << state_name(next) << " after " << state_name(before);
    }
  }
}

TEST(SequenceState, WaitsAtFirst) {
  using enum SequenceState;
  CheckedState state;
  EXPECT_EQ(state.get(), kWaiting);
  state.enter(kRunning);
  state.enter(kPaused);
  EXPECT_EQ(state.get(), kPaused);
}

using SequenceStateDeathTest = testing::Test;
TEST(SequenceStateDeathTest, NothingFollowsTheEnd) {
  using enum SequenceState;
  CheckedState state;
  state.enter(kEnding);
  EXPECT_DEATH(state.enter(kRunning), "broken invariant");
}

}  // namespace
}  // namespace tandem
