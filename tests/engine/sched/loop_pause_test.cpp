// Requests with slow readers: they are held, lose their pages to others, and resume with the same
// output.
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;

const std::vector<Token> kShortPrompt = {3, 1, 4, 1, 5};

TEST(LoopPause, PausesAtTheNextRoundAndResumesWithTheSameOutput) {
  Box box{BoxOptions()};
  const auto r = box.submit(box.spec(kShortPrompt, 30));
  const auto other = box.submit(box.spec({9, 9}, 30));
  ASSERT_TRUE(box.pump_until([&] { return r->tokens.size() == 5; }));
  box.loop->pause(1);
  ASSERT_TRUE(box.pump_until([&] { return other->ends == 1; }));
  EXPECT_LE(r->tokens.size(), 6U) << "at most the round that was under way";
  EXPECT_GT(box.used_pages(), 0);
  EXPECT_EQ(box.metrics.requests_paused.value(), 1);
  EXPECT_EQ(other->tokens, box.greedy({9, 9}, 30));
  EXPECT_FALSE(box.loop->device_busy());
  box.loop->resume(1);
  box.pump();
  EXPECT_EQ(r->tokens, box.greedy(kShortPrompt, 30));
  EXPECT_EQ(r->end.stats.preemptions, 0);
  EXPECT_EQ(box.metrics.requests_paused.value(), 0);
  box.expect_idle();
}

TEST(LoopPause, ReleasesItsPagesAfterATime) {
  BoxOptions o;
  o.limits.slow_reader_hold_seconds = 3;
  o.limits.stalled_stream_seconds = 1000;
  Box box{o};
  const auto r = box.submit(box.spec(kShortPrompt, 30));
  ASSERT_TRUE(box.pump_until([&] { return r->tokens.size() == 5; }));
  const TimePoint paused = box.clock.now();
  box.loop->pause(1);
  ASSERT_TRUE(box.pump_until([&] { return box.metrics.preemptions.value() == 1; }));
  EXPECT_NEAR(seconds(box.clock.now() - paused), 3, 0.1);
  EXPECT_EQ(box.used_pages(), 0);
  EXPECT_EQ(r->ends, 0);
  box.clock.advance(100s);
  box.loop->resume(1);
  box.pump();
  EXPECT_EQ(r->tokens, box.greedy(kShortPrompt, 30));
  EXPECT_EQ(r->end.stats.preemptions, 1);
  box.expect_idle();
}

// Both kinds of competitors: running requests that need pages, and waiting ones.
TEST(LoopPause, ReleasesItsPagesToRequestsThatNeedThem) {
  for (const bool admitted : {true, false}) {
    BoxOptions o;
    o.models[0].pool.pages = 10;  // of 4 rows
    o.limits.slow_reader_hold_seconds = 1e6;
    o.limits.stalled_stream_seconds = 1e7;
    Box box{o};
    const auto slow = box.submit(box.spec(std::vector<Token>(20, 3), 16));
    std::shared_ptr<Recorder> other;
    if (admitted) other = box.submit(box.spec({1}, 35));
    ASSERT_TRUE(box.pump_until([&] { return slow->tokens.size() == 2; }));
    box.loop->pause(1);
    box.loop->step();
    if (!admitted) {
      while (box.loop->device_busy()) box.tick();
      box.loop->step();
      EXPECT_EQ(box.metrics.preemptions.value(), 0);
      other = box.submit(box.spec(std::vector<Token>(22, 1), 10));
    }
    ASSERT_TRUE(box.pump_until([&] { return other->ends == 1; }));
    EXPECT_TRUE(other->ok());
    EXPECT_EQ(slow->ends, 0);
    EXPECT_EQ(box.metrics.preemptions.value(), 1);
    box.loop->resume(1);
    box.pump();
    EXPECT_EQ(slow->tokens, box.greedy(std::vector<Token>(20, 3), 16));
    box.expect_idle();
  }
}

TEST(LoopPause, TakesNoSlot) {
  BoxOptions o;
  o.limits.max_running = 1;
  Box box{o};
  const auto slow = box.submit(box.spec(kShortPrompt, 10));
  ASSERT_TRUE(box.pump_until([&] { return slow->tokens.size() == 2; }));
  const auto other = box.submit(box.spec({1}, 10));
  box.loop->pause(1);
  ASSERT_TRUE(box.pump_until([&] { return other->ends == 1; }));
  EXPECT_EQ(slow->ends, 0);
  box.loop->resume(1);
  box.pump();
  EXPECT_TRUE(slow->ok());
  box.expect_idle();
}

TEST(LoopPause, AReaderThatNeverReadsEndsTheRequestInTheEnd) {
  BoxOptions o;
  o.limits.stalled_stream_seconds = 50;
  Box box{o};
  const auto r = box.submit(box.spec(kShortPrompt, 30));
  ASSERT_TRUE(box.pump_until([&] { return r->tokens.size() == 5; }));
  const TimePoint paused = box.clock.now();
  box.loop->pause(1);
  box.pump();
  EXPECT_EQ(r->end.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(r->end.status.message(),
            "the client reads too slowly: sent data was unread for 50 s "
            "(limits.stalled_stream_seconds)");
  EXPECT_EQ(seconds(box.clock.now() - paused), 50);
  EXPECT_EQ(box.metrics.requests_paused.value(), 0);
  box.expect_idle();
}

TEST(LoopPause, TheStallIsCountedFromTheLastPause) {
  BoxOptions o;
  o.limits.stalled_stream_seconds = 50;
  o.limits.slow_reader_hold_seconds = 1e6;
  Box box{o};
  const auto r = box.submit(box.spec(kShortPrompt, 200));
  for (int i = 0; i < 5; ++i) {
    const size_t n = r->tokens.size() + 3;
    ASSERT_TRUE(box.pump_until([&] { return r->tokens.size() >= n; }));
    box.loop->pause(1);
    box.loop->pause(1);  // again: nothing
    while (box.loop->step() || box.timer.fire_next()) {
    }
    box.clock.advance(40s);
    box.loop->resume(1);
    box.loop->resume(1);
  }
  box.pump();
  EXPECT_EQ(r->tokens, box.greedy(kShortPrompt, 200));
  box.expect_idle();
}

TEST(LoopPause, PausesAllChoices) {
  Box box{BoxOptions()};
  const auto all = box.submit(box.spec(kShortPrompt, 20), 3);
  ASSERT_TRUE(box.pump_until([&] { return all[2]->tokens.size() == 3; }));
  box.loop->pause(1);
  while (box.loop->step() || box.timer.fire_next()) {
  }
  for (const auto& r : all) EXPECT_LT(r->tokens.size(), 8U);
  box.loop->resume(1);
  box.pump();
  for (const auto& r : all) EXPECT_EQ(r->tokens, box.greedy(kShortPrompt, 20));
  box.expect_idle();
}

// Random pauses and resumes with too few pages: output is complete and unchanged.
TEST(LoopPause, AtRandom) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    BoxOptions o;
    o.models[0].pool.pages = 9;
    o.limits.slow_reader_hold_seconds = 0.004;
    o.shuffle = seed;
    Box box{o};
    std::mt19937_64 rng(seed);
    std::vector<std::pair<std::vector<Token>, std::shared_ptr<Recorder>>> all;
    for (int i = 0; i < 8; ++i) {
      auto prompt = random_prompt(rng, 1, 16);
      all.emplace_back(prompt, box.submit(box.spec(prompt, 16)));
    }
    for (int i = 0; i < 400; ++i) {
      const RequestId id = 1 + rng() % 9;  // 9: no request
      rng() % 2 ? box.loop->pause(id) : box.loop->resume(id);
      for (int k = 0; k < 3; ++k) {
        if (!box.loop->step() && !box.timer.fire_next()) box.clock.advance(1ms);
      }
    }
    for (RequestId id = 1; id <= 8; ++id) box.loop->resume(id);
    box.pump();
    for (const auto& [prompt, r] : all) EXPECT_EQ(r->tokens, box.greedy(prompt, 16)) << seed;
    EXPECT_EQ(box.metrics.requests_paused.value(), 0);
    box.expect_idle();
  }
}

}  // namespace
}  // namespace tandem::test
