// Models that come and go while the loop runs.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

// A box of one model, and another one that is added to its device.
class LoopModels : public ::testing::Test {
 protected:
  static constexpr PoolSize kPool = {4, 16, 16};

  LoopModel added(uint64_t seed, int64_t id = 1) {
    box_.backends[0].add_model(ModelId(id), "added", tiny_model(seed), kPool);
    LoopModel model;
    model.id = ModelId(id);
    model.device = DeviceId(0);
    return model;
  }
  void add(uint64_t seed, int64_t id = 1) {
    bool done = false;
    box_.loop->add_models({added(seed, id)}, [&] { done = true; });
    ASSERT_TRUE(box_.pump_until([&] { return done; }));
  }
  std::shared_ptr<Recorder> submit(int64_t id, int tokens = 20) {
    SequenceSpec spec = box_.spec({1, 2, 3, 4, 5}, tokens);
    spec.cast = make_cast({{Role::kLarge, ModelId(id)}});
    return box_.submit(std::move(spec));
  }

  Box box_{{}};
};

TEST_F(LoopModels, AnAddedOneRunsAndItsPlaceIsUsedAgain) {
  for (uint64_t seed = 2; seed < 5; ++seed) {
    add(seed);
    const auto own = submit(1), other = submit(0);
    ASSERT_TRUE(box_.pump_until([&] { return own->ends > 0 && other->ends > 0; }));
    EXPECT_EQ(own->tokens, fake::greedy(tiny_model(seed), {1, 2, 3, 4, 5}, 20));
    EXPECT_EQ(other->tokens, box_.greedy({1, 2, 3, 4, 5}, 20));
    bool removed = false;
    box_.loop->remove_models({ModelId(1)}, [&] { removed = true; });
    ASSERT_TRUE(box_.pump_until([&] { return removed; }));
    box_.backends[0].remove_model(ModelId(1));
    EXPECT_EQ(box_.memory.models(), 1U);
  }
  box_.pump();
  box_.expect_idle();
}

// Its sequence runs to its end first, and the device frees its pages.
TEST_F(LoopModels, ARemovedOneWaitsForItsSequences) {
  add(2);
  const auto own = submit(1, 40), other = submit(0, 60);
  ASSERT_TRUE(box_.pump_until([&] { return own->tokens.size() >= 3; }));
  bool removed = false;
  box_.loop->remove_models({ModelId(1)}, [&] {
    removed = true;
    EXPECT_EQ(own->ends, 1);
  });
  ASSERT_TRUE(box_.pump_until([&] { return removed; }));
  EXPECT_EQ(own->tokens, fake::greedy(tiny_model(2), {1, 2, 3, 4, 5}, 40));
  box_.backends[0].remove_model(ModelId(1));  // batches with its pages would abort from now on
  ASSERT_TRUE(box_.pump_until([&] { return other->ends > 0; }));
  EXPECT_EQ(other->tokens, box_.greedy({1, 2, 3, 4, 5}, 60));
  box_.pump();
  box_.expect_idle();
}

// An idle device frees what the prefix cache holds with a batch of its own.
TEST_F(LoopModels, ARemovedOneLeavesAnIdleDevice) {
  add(2);
  ASSERT_TRUE(submit(1)->ends == 0);
  box_.pump();
  bool removed = false;
  box_.loop->remove_models({ModelId(1)}, [&] { removed = true; });
  box_.pump();
  EXPECT_TRUE(removed);
  box_.backends[0].remove_model(ModelId(1));
  const auto other = submit(0);
  box_.pump();
  EXPECT_TRUE(other->ok());
}

TEST_F(LoopModels, ALostDeviceGivesItsModelsBack) {
  add(2);
  const auto own = submit(1, 40);
  ASSERT_TRUE(box_.pump_until([&] { return !own->tokens.empty(); }));
  box_.backends[0].set_faults([](const Batch&) {
    Fault fault;
    fault.status = absl::UnavailableError("lost");
    return fault;
  });
  bool removed = false;
  box_.loop->remove_models({ModelId(1)}, [&] { removed = true; });
  box_.pump();
  EXPECT_EQ(own->end.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(removed);
}

}  // namespace
}  // namespace tandem::test
