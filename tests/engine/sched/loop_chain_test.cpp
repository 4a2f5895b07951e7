// Passes that depend on passes under way are launched behind them: a chain of drafts takes one step
// of the loop. Also failures of earlier passes.
#include <deque>

#include "engine/decode/speculative.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

constexpr int kDrafts = 4;

// Two equal models, so that all drafts are accepted, on one device or on two.
BoxOptions equal_pair(int small_device = 0) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].device = small_device;
  return o;
}

struct ChainBox : Box {
  explicit ChainBox(BoxOptions o) : Box(std::move(o)) {
    for (size_t d = 0; d < backends.size(); ++d) {
      under_way.emplace_back();
      backends[d].set_faults([this, d](const Batch& b) {
        EXPECT_EQ(b.behind, !under_way[d].empty());
        under_way[d].push_back(b.run_rows());
        ++launched;
        return faults ? faults(d, b) : Fault();
      });
      backends[d].set_on_done([this, d] { under_way[d].pop_front(); });
    }
  }
  ~ChainBox() {
    loop->stop_all(absl::CancelledError("the box closes"));
    pump();
  }
  ChainBox(const ChainBox&) = delete;
  ChainBox& operator=(const ChainBox&) = delete;

  // First token and rounds of kDrafts drafts and a bonus.
  SequenceSpec drafting(std::vector<Token> prompt, int rounds, float temperature = 0) {
    SequenceSpec s = spec(std::move(prompt), 1 + rounds * (kDrafts + 1));
    s.cast = make_cast({{Role::kLarge, ModelId(0), 0}, {Role::kSmall, ModelId(1), 0}});
    s.warp.temperature = temperature;
    s.warp.seed = 5;
    SpeculativeParams a;
    a.draft_tokens = kDrafts;
    s.method = [a](Gen g) { return speculative(g, a); };
    return s;
  }
  size_t depth(size_t device = 0) const { return under_way[device].size(); }
  int rows(size_t device = 0) const {
    int n = 0;
    for (const int r : under_way[device]) n += r;
    return n;
  }

  std::vector<std::deque<int>> under_way;  // by device: rows of its batches
  int launched = 0;
  std::function<Fault(size_t device, const Batch&)> faults;
};

// The launches of each step with launches.
std::vector<int> launches(ChainBox& box) {
  std::vector<int> all;
  for (bool more = true; more;) {
    const int before = box.launched;
    more = box.tick();
    if (box.launched > before) all.push_back(box.launched - before);
  }
  return all;
}

TEST(LoopChain, ARoundOnOneDeviceIsOneTurn) {
  for (const float temperature : {0.0F, 1.0F}) {
    ChainBox box{equal_pair()};
    const auto r = box.submit(box.drafting({1, 2, 3}, 3, temperature));
    const std::vector<int> all = launches(box);
    ASSERT_TRUE(r->ok());
    EXPECT_EQ(r->end.stats.accept_lengths, (std::vector<int64_t>{0, 0, 0, 0, 3}));
    ASSERT_GE(all.size(), 2U);
    EXPECT_EQ((std::vector<int>(all.end() - 2, all.end())), (std::vector<int>(2, kDrafts + 1)));
    box.expect_idle();
  }
}

TEST(LoopChain, AVerificationElsewhereWaitsForItsDrafts) {
  ChainBox box{equal_pair(1)};
  int verified = 0;
  box.faults = [&](size_t device, const Batch& b) {
    for (const Work& w : b.works) {
      const auto chosen = [](const In& in) { return in.kind == In::kChosen; };
      if (device != 0 || !std::ranges::any_of(w.pass->add.in, chosen)) continue;
      EXPECT_EQ(box.depth(1), 0U);
      ++verified;
    }
    return Fault();
  };
  const auto r = box.submit(box.drafting({1, 2, 3}, 3));
  const std::vector<int> all = launches(box);
  ASSERT_TRUE(r->ok());
  EXPECT_EQ(verified, 3);
  ASSERT_GE(all.size(), 6U);
  EXPECT_EQ((std::vector<int>(all.end() - 6, all.end())),
            (std::vector<int>{kDrafts, 1, kDrafts, 1, kDrafts, 1}));
}

// Two drafting sequences share batches; a third one can join at the batch after the next.
TEST(LoopChain, ChainsOfSeveralSequencesShareBatches) {
  ChainBox box{equal_pair()};
  size_t deepest = 0;
  int64_t works = 0, batches = 0;
  std::shared_ptr<Recorder> a, b;
  box.faults = [&](size_t, const Batch& batch) {
    if (a->ends + b->ends > 0 || std::min(a->tokens.size(), b->tokens.size()) == 0) return Fault();
    deepest = std::max(deepest, box.depth());
    works += static_cast<int64_t>(batch.works.size());
    ++batches;
    return Fault();
  };
  a = box.submit(box.drafting({1, 2, 3}, 6));
  b = box.submit(box.drafting({4, 5, 6}, 6));
  box.pump();
  EXPECT_TRUE(a->ok() && b->ok());
  EXPECT_EQ(deepest, 2U);
  EXPECT_GT(works, batches * 3 / 2);
}

TEST(LoopChain, TogetherTheyAreNoLargerThanABatch) {
  BoxOptions o = equal_pair();
  o.limits.step_rows = 7;
  o.limits.prefill_chunk_rows = 4;
  ChainBox box{o};
  size_t deepest = 0;
  box.faults = [&](size_t, const Batch&) {
    deepest = std::max(deepest, box.depth());
    if (box.depth() > 1) EXPECT_LE(box.rows(), 7);
    return Fault();
  };
  const auto a = box.submit(box.drafting(std::vector<Token>(30, 7), 6));
  const auto b = box.submit(box.drafting({4, 5, 6}, 12));
  box.pump();
  EXPECT_TRUE(a->ok() && b->ok());
  EXPECT_GT(deepest, 1U);
}

TEST(LoopChain, OthersGoOnlyWithIt) {
  ChainBox box{equal_pair()};
  box.faults = [&](size_t, const Batch& b) {
    const auto of_the_chain = [](const Work& w) { return w.request == 1; };
    if (b.behind) EXPECT_TRUE(std::ranges::any_of(b.works, of_the_chain));
    return Fault();
  };
  const auto a = box.submit(box.drafting({1, 2, 3}, 8));
  std::vector<std::shared_ptr<Recorder>> others;
  for (int i = 0; i < 3; ++i) others.push_back(box.submit(box.spec({i, 2}, 30)));
  box.pump();
  EXPECT_TRUE(a->ok());
  for (const auto& r : others) EXPECT_TRUE(r->ok());
}

// --- What goes wrong with the n-th batch

struct Outcome {
  absl::StatusCode drafting, other;
  size_t behind = 0;  // batches that were under way behind the one that was struck, at most
};

// A drafting sequence beside another one. `strike` changes the n-th batch, and with `on` all later
// ones.
Outcome struck(int n, int small_device, const std::function<Fault(const Batch&)>& strike,
               bool on = false) {
  ChainBox box{equal_pair(small_device)};
  Outcome outcome;
  bool hit_other = false;
  box.faults = [&](size_t d, const Batch& b) {
    if (box.launched < n || (box.launched > n && !on)) return Fault();
    outcome.behind = std::max(outcome.behind, box.depth(d) - 1);
    hit_other |= std::ranges::any_of(b.works, [](const Work& w) { return w.request == 2; });
    return strike(b);
  };
  const SequenceSpec drafting = box.drafting({1, 2, 3}, 3);
  const auto a = box.submit(drafting);
  const auto b = box.submit(box.spec({9, 9}, 3));
  box.pump();
  EXPECT_EQ(a->ends, 1);
  EXPECT_EQ(b->ends, 1);
  outcome.drafting = a->end.status.code();
  outcome.other = hit_other ? absl::StatusCode::kOk : b->end.status.code();
  const std::vector<Token> expected = box.greedy({1, 2, 3}, drafting.stops.max_new_tokens);
  if (a->ok()) {
    EXPECT_EQ(a->tokens, expected);
  } else {
    EXPECT_TRUE(std::equal(a->tokens.begin(), a->tokens.end(), expected.begin()));
  }
  box.expect_idle();
  return outcome;
}

TEST(LoopChain, OutOfMemoryTakesBackWhatIsBehind) {
  size_t behind = 0;
  for (int device = 0; device < 2; ++device) {
    for (int n = 1; n < 20; ++n) {
      const Outcome o = struck(n, device, [](const Batch&) {
        return Fault{absl::ResourceExhaustedError("CUDA out of memory"), {}, {}};
      });
      EXPECT_EQ(o.drafting, absl::StatusCode::kOk) << n;
      EXPECT_EQ(o.other, absl::StatusCode::kOk) << n;
      behind = std::max(behind, o.behind);
    }
  }
  EXPECT_GT(behind, 1U);
}

TEST(LoopChain, AFailedPassEndsItsRequestAlone) {
  for (int device = 0; device < 2; ++device) {
    for (int n = 1; n < 20; ++n) {
      int last = 0;
      const Outcome nan = struck(n, device, [&](const Batch& b) {
        last = static_cast<int>(b.works.size()) - 1;
        return Fault{{}, {last}, {}};
      });
      EXPECT_EQ(nan.other, absl::StatusCode::kOk) << n;
      const Outcome error = struck(
          n, device, [](const Batch&) { return Fault{absl::InternalError("xid 13"), {}, {}}; });
      EXPECT_EQ(error.other, absl::StatusCode::kOk) << n;
    }
  }
}

TEST(LoopChain, ALostDeviceEndsAll) {
  for (int n = 1; n < 20; ++n) {
    ChainBox box{equal_pair()};
    box.faults = [&](size_t, const Batch&) {
      return box.launched >= n ? Fault{absl::UnavailableError("gone"), {}, {}} : Fault();
    };
    const auto a = box.submit(box.drafting({1, 2, 3}, 6));
    box.pump();
    EXPECT_EQ(a->end.status.code(), absl::StatusCode::kUnavailable) << n;
    EXPECT_EQ(box.loop->live(), 0);
    EXPECT_FALSE(box.loop->device_busy());
    EXPECT_EQ(box.used_pages(), 0);
  }
}

TEST(LoopChain, PagesStayUntilAllOfACancelledChainIsDone) {
  ChainBox box{equal_pair()};
  const auto r = box.submit(box.drafting({1, 2, 3}, 6));
  ASSERT_TRUE(box.pump_until([&] { return box.depth() == kDrafts + 1; }));
  box.loop->stop(1, absl::CancelledError("by the client"));
  for (;;) {
    box.loop->step();
    EXPECT_EQ(r->ends, 1);
    EXPECT_EQ(box.used_pages() > 0, box.depth() > 0);
    if (box.depth() == 0) break;
    box.timer.fire_next();
  }
  box.expect_idle();
}

// The age restarts with each batch that becomes the oldest.
TEST(LoopChain, ADeviceReportsTheAgeOfItsOldestBatch) {
  ChainBox box{equal_pair(1)};
  const auto at = [&](int device) { return box.loop->at_one_batch(DeviceId(device)); };
  EXPECT_EQ(at(0), Duration::zero());
  const auto r = box.submit(box.drafting({1, 2, 3}, 3));
  ASSERT_TRUE(box.tick());
  ASSERT_EQ(box.depth(0), 1U);
  box.clock.advance(std::chrono::seconds(2));
  EXPECT_EQ(at(0), std::chrono::seconds(2));
  int restarts = 0;
  while (box.tick()) {
    const size_t depth = box.depth(1);
    if (depth < 2) continue;
    box.clock.advance(std::chrono::seconds(1));
    EXPECT_GE(at(1), std::chrono::seconds(1));
    if (!box.timer.fire_next()) continue;
    box.loop->step();  // learns that a batch is done
    if (box.depth(1) != depth - 1) continue;
    EXPECT_EQ(at(1), Duration::zero());
    ++restarts;
  }
  EXPECT_TRUE(r->ok());
  EXPECT_GE(restarts, 3);
  EXPECT_EQ(at(1), Duration::zero());
}

}  // namespace
}  // namespace tandem::test
