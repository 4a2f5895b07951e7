#include "server/idle_unloader.h"

#include <gtest/gtest.h>

#include <future>

namespace tandem {
namespace {

TEST(IdleUnloader, CallsAtOnceAndAtTheTimeThatACallReturned) {
  int calls = 0;
  std::promise<void> thrice;
  const IdleUnloader unloader([&] {
    if (++calls == 3) thrice.set_value();
    return calls < 3 ? TimePoint() : kNever;  // past
  });
  thrice.get_future().wait();
}

TEST(IdleUnloader, SleepsUntilItIsPoked) {
  int calls = 0;
  std::promise<void> first, second;
  {
    IdleUnloader unloader([&] {
      if (++calls == 1) first.set_value();
      if (calls == 2) second.set_value();
      return kNever;
    });
    first.get_future().wait();
    unloader.poke();
    second.get_future().wait();
  }
  EXPECT_EQ(calls, 2);
}

// A poke during a call may concern what the call did not see.
TEST(IdleUnloader, APokeDuringACallIsNotLost) {
  std::promise<void> inside, go, again;
  int calls = 0;
  IdleUnloader unloader([&] {
    if (++calls == 1) {
      inside.set_value();
      go.get_future().wait();
    } else {
      again.set_value();
    }
    return kNever;
  });
  inside.get_future().wait();
  unloader.poke();
  go.set_value();
  again.get_future().wait();
}

}  // namespace
}  // namespace tandem
