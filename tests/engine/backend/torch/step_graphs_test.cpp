// Captured and replayed steps on lazy queues: the results equal those of a device without graphs,
// and every mutation is detected.
#include "engine/backend/torch/step_graphs.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"

namespace tandem {
namespace {

// All are taken when the steps below have run.
constexpr PoolSize kSize = {.page_rows = 4, .pages = 29, .frontier_pages = 4};
constexpr int kTurns = 4;

const TinyModel& tiny() {
  static const TinyModel* const model = [] {
    DecoderConfig config = tiny_config();
    config.layers = 2;
    return new TinyModel(tiny_model(config));
  }();
  return *model;
}

Pass text(int n, uint64_t seed) { return chain_pass(2, random_tokens(n, 64, seed)); }

Read rows_from(int first, int n) {
  RowList rows;
  for (Row r = first; r < n; ++r) rows.push_back(r);
  return all_logprobs(rows, 64);
}

Read greedy(int vocab) {
  Read read;
  read.rows = {0};
  read.draw = read.max_prob = true;
  read.warp.vocab = vocab;
  return read;
}

void append(std::vector<float>& said, const Readout& readout) {
  for (const Out& o : readout.row) {
    said.push_back(static_cast<float>(o.token));
    said.push_back(std::isnan(o.max_prob) ? -1 : o.max_prob);  // not requested
    for (const Ranked& r : o.top) said.push_back(r.logprob + static_cast<float>(r.token));
  }
}

// Three sequences that decode together, which makes four rows: read by answers, as logits, by
// answers of few tokens, and the first alone; and one of them with three rows of which the last is
// read. Between the turns a prompt is read whole, for which buffers move.
// counts: set to what became of the steps.
std::vector<float> decoded(
    const std::shared_ptr<TorchShared>& shared,
    const std::function<void(int turn)>& before = [](int) {}, GraphCounts* counts = nullptr) {
  std::vector<float> said;
  Driver d(tiny(), shared, 0, kSize);
  std::vector<Sequence> s;
  for (uint64_t i = 0; i < 3; ++i) {
    s.push_back(d.sequence());
    d.run(s.back(), text(9, i));
  }
  Sequence other = d.sequence();
  uint64_t seed = 10;
  for (int turn = 0; turn < kTurns; ++turn) {
    before(turn);
    const auto step = [&](const Read& read, size_t readers) {
      std::vector<Pass> passes;
      for (size_t i = 0; i < 3; ++i) passes.push_back(text(1, ++seed));
      for (size_t i = 0; i < readers; ++i) passes[i].reading(read);
      std::vector<Driver::Item> items;
      for (size_t i = 0; i < 3; ++i) items.push_back({&s[i], &passes[i]});
      for (const WorkResult& r : d.run(items)) append(said, r.readout);
    };
    step(greedy(64), 3);
    step(rows_from(0, 1), 3);
    step(greedy(20), 3);
    step(rows_from(0, 1), 1);
    Pass chain = text(3, ++seed);
    append(said, d.run(s[0], chain.reading(rows_from(2, 3))));
    if (turn == 2) {
      Pass prompt = text(20, ++seed);
      append(said, d.run(other, prompt.reading(rows_from(0, 20))));
    }
  }
  if (counts != nullptr) *counts = d.graph_counts();
  return said;
}

const std::vector<float>& expected() {
  static const auto* const said = new std::vector<float>(decoded(std::make_shared<TorchShared>()));
  return *said;
}

std::shared_ptr<TorchShared> shared_of(LazyDevices& devices) {
  return std::make_shared<TorchShared>(devices.make_queue());
}

bool is_wrong(LazyDevices& devices, const std::function<void(int)>& before = [](int) {}) {
  testing::TestPartResultArray failures;
  const testing::ScopedFakeTestPartResultReporter quiet(
      testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
  const std::vector<float> got = decoded(shared_of(devices), before);
  return failures.size() > 0 || got != expected();
}

absl::Status status_of(Driver& on, Sequence& s, const Pass& pass) {
  testing::TestPartResultArray failures;
  const testing::ScopedFakeTestPartResultReporter quiet(
      testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
  const Driver::Item item{&s, &pass};
  return on.run({&item, 1})[0].status;
}

int calls(const LazyDevices& devices, QueueCall call) {
  return devices.calls()[static_cast<size_t>(call)];
}

class StepGraph : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCpu)
      GTEST_SKIP() << "a CPU's kernels, whatever there is";
  }
  void TearDown() override { test_device_graphs = true; }
};

// Of each turn's five shapes the first turn launches, the second captures and replays, the third
// replays; the prompt moves buffers, so the fourth launches again.
TEST_F(StepGraph, ReplaysGiveTheAnswersOfLaunches) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed % 2 == 1});
    std::vector<int> captured, replayed;
    const auto count = [&](int) {
      captured.push_back(calls(devices, QueueCall::kCapture));
      replayed.push_back(calls(devices, QueueCall::kReplay));
    };
    GraphCounts counts;
    EXPECT_EQ(decoded(shared_of(devices), count, &counts), expected());
    count(0);
    EXPECT_EQ(devices.fault(), "");
    EXPECT_EQ(captured.back(), 5);
    EXPECT_EQ(replayed, (std::vector<int>{0, 0, 5, 10, 10}));
    EXPECT_EQ(counts.captured, 5);
    EXPECT_EQ(counts.replayed, 10);
    EXPECT_EQ(counts.refused, 0);
    EXPECT_EQ(counts.reason, "");
  }
}

TEST_F(StepGraph, AreNotMadeIfSwitchedOff) {
  test_device_graphs = false;
  LazyDevices devices({});
  GraphCounts counts;
  EXPECT_EQ(decoded(shared_of(devices), [](int) {}, &counts), expected());
  EXPECT_EQ(counts.launched, 0) << "as graphs' steps";
  EXPECT_EQ(calls(devices, QueueCall::kCapture), 0);
  EXPECT_EQ(calls(devices, QueueCall::kReplay), 0);
}

// One copy to the device, one replay, one copy back, and events for other device queues and the
// host.
TEST_F(StepGraph, AStepIsOneCopyOneReplayOneCopy) {
  LazyDevices devices({});
  Driver d(tiny(), shared_of(devices), 0, kSize);
  Sequence s = d.sequence();
  Pass pass = text(1, 1);
  pass.reading(greedy(64));
  for (int i = 0; i < 5; ++i) d.run(s, pass);
  const auto before = devices.calls();
  d.run(s, pass);
  std::vector<int> made;
  for (size_t i = 0; i < before.size(); ++i) made.push_back(devices.calls()[i] - before[i]);
  // copy, zero, launch, capture, replay, record, wait, synchronize
  EXPECT_EQ(made, (std::vector<int>{2, 0, 0, 0, 1, 2, 0, 1}));
}

// Trees, chains across pages and contexts that outgrow a graph's number of keys.
TEST_F(StepGraph, TreesAndLongContextsAreReplayedToo) {
  const auto run = [](const std::shared_ptr<TorchShared>& shared) {
    std::vector<float> said;
    Driver d(tiny(), shared, 0, {.page_rows = 4, .pages = 100, .frontier_pages = 4});
    Sequence s = d.sequence();
    d.run(s, text(240, 1));
    for (int i = 0; i < 8; ++i) {
      Pass tree;
      tree.stage.to = 2;
      for (const Row parent : {-1, 0, 0, 2, 1}) tree.add.add(token_in(parent + 7), parent);
      tree.reading(rows_from(0, 5));
      append(said, d.run(s, tree));
      d.keep(s, 5, {0, 2, 3});
    }
    return said;
  };
  LazyDevices devices({.eager = true});
  EXPECT_EQ(run(shared_of(devices)), run(std::make_shared<TorchShared>()));
  EXPECT_EQ(devices.fault(), "");
  EXPECT_EQ(calls(devices, QueueCall::kCapture), 2) << "up to 256 keys, and up to 512";
  EXPECT_GE(calls(devices, QueueCall::kReplay), 4);
}

TEST_F(StepGraph, EveryReplayThatIsLeftOutIsSeen) {
  for (int n = 0; n < 10; ++n) {
    LazyDevices devices({});
    devices.skip(QueueCall::kReplay, n);
    EXPECT_TRUE(is_wrong(devices)) << n;
  }
}

TEST_F(StepGraph, WhatADeviceDoesNotCaptureIsLaunched) {
  LazyDevices devices({});
  devices.fail(QueueCall::kCapture, 0, [] { throw std::runtime_error("not while capturing"); });
  static_cast<void>(expected());
  testing::internal::CaptureStderr();
  GraphCounts counts;
  const std::vector<float> got = decoded(shared_of(devices), [](int) {}, &counts);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("not while capturing"));
  EXPECT_EQ(counts.captured, 4);
  EXPECT_EQ(counts.refused, 1);
  EXPECT_EQ(counts.replayed, 8);
  EXPECT_THAT(counts.reason, testing::HasSubstr("not while capturing"));
  EXPECT_EQ(got, expected());
  EXPECT_EQ(calls(devices, QueueCall::kCapture), 5);
  EXPECT_EQ(calls(devices, QueueCall::kReplay), 8) << "of the four other shapes";
}

TEST_F(StepGraph, AShortageOfMemoryIsTriedAgain) {
  LazyDevices devices({});
  Driver d(tiny(), shared_of(devices), 0, kSize);
  Sequence s = d.sequence();
  Pass pass = text(1, 1);
  pass.reading(greedy(64));
  devices.fail(QueueCall::kCapture, 0, [] { throw std::bad_alloc(); });
  for (int i = 0; i < 2 + StepGraphs::kStepsBeforeRetry; ++i) d.run(s, pass);
  EXPECT_EQ(calls(devices, QueueCall::kCapture), 1);
  EXPECT_EQ(calls(devices, QueueCall::kReplay), 0);
  d.run(s, pass);
  EXPECT_EQ(calls(devices, QueueCall::kCapture), 2);
  EXPECT_EQ(calls(devices, QueueCall::kReplay), 1);
}

// Steps of one shape but for the number of changes: none, a few, more than the fewest of a graph.
std::vector<float> changed(const std::shared_ptr<TorchShared>& shared) {
  std::vector<float> said;
  Driver d(tiny(), shared, 0, kSize);
  Sequence s = d.sequence();
  std::vector<Read> reads(3, greedy(64));
  for (const int biased : {3, 40}) {
    Processors p;
    for (Token t = 0; t < biased; ++t) p.bias.emplace_back(t, 0.5f * static_cast<float>(t % 5));
    reads[biased == 3 ? 1 : 2].warp.processors = std::make_shared<const Processors>(p);
  }
  for (uint64_t turn = 0; turn < 4; ++turn) {
    for (const Read& read : reads) {
      Pass pass = text(2, 7 + turn);
      Read second = read;
      second.rows = {1};
      append(said, d.run(s, pass.reading(read).reading(second)));
    }
  }
  return said;
}

TEST_F(StepGraph, ChangesOfLogitsAreReplayed) {
  const std::vector<float> want = changed(std::make_shared<TorchShared>());
  for (uint64_t seed = 0; seed < 2; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed % 2 == 1});
    EXPECT_EQ(changed(shared_of(devices)), want);
    EXPECT_EQ(devices.fault(), "");
    EXPECT_EQ(calls(devices, QueueCall::kCapture), 3);
    EXPECT_EQ(calls(devices, QueueCall::kReplay), 9);
  }
}

// Shapes of 1 to 8 rows and answers of 1 to 64 tokens, and then one more.
TEST_F(StepGraph, TheLeastRecentlyUsedShapeIsRetired) {
  LazyDevices devices({});
  Driver d(tiny(), shared_of(devices), 0, kSize);
  const auto meet = [&](int rows, int vocab) {
    Sequence s = d.sequence();
    Pass pass = text(rows, 1);
    d.run(s, pass.reading(greedy(vocab)));
    d.release(s);
  };
  const auto replayed = [&](int rows, int vocab) {
    const int before = calls(devices, QueueCall::kReplay);
    meet(rows, vocab);
    return calls(devices, QueueCall::kReplay) > before;
  };
  meet(StepGraphs::kMostRows + 1, 1);  // no step of graphs; buffers are as large as they will be
  for (int i = 0; i < 2; ++i) meet(1, 1);
  for (int i = 0; i < 2; ++i) meet(1, 2);
  for (const int rows : {1, 2, 4, 8}) {
    for (int vocab = 1; vocab <= 64; ++vocab) meet(rows, vocab);
  }
  EXPECT_TRUE(replayed(1, 1));
  meet(16, 1);
  EXPECT_TRUE(replayed(1, 1));
  EXPECT_FALSE(replayed(1, 2));
}

// An error in a replay ends the batch and loses its device, not the other one.
TEST_F(StepGraph, AnIllegalAccessInAReplayLosesThatDeviceAlone) {
  LazyDevices devices({});
  const auto shared = shared_of(devices);
  Driver main(tiny(), shared, 0, kSize);
  Driver worker(tiny(), shared, 1, kSize);
  Pass pass = text(1, 1);
  pass.reading(rows_from(0, 1));
  Sequence here = main.sequence();
  Sequence there = worker.sequence();
  for (int i = 0; i < 3; ++i) {
    worker.run(there, pass);
    main.run(here, pass);
  }
  devices.fail(
      QueueCall::kReplay, 0,
      [] {
        throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: illegal");
      },
      /*for_ever=*/true);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(status_of(worker, there, pass).code(), absl::StatusCode::kUnavailable);
  }
  std::vector<float> want, got;
  {
    Driver alone(tiny(), std::make_shared<TorchShared>(), 0, kSize);
    Sequence s = alone.sequence();
    for (int i = 0; i < 3; ++i) alone.run(s, pass);
    append(want, alone.run(s, pass));
  }
  append(got, main.run(here, pass));
  EXPECT_EQ(got, want);
}

#ifdef TANDEM_MUTATIONS
TEST_F(StepGraph, MutationsAreFound) {
  for (const GraphMutation bug :
       {GraphMutation::kStagingMoves, GraphMutation::kRowsCut, GraphMutation::kNoScratch,
        GraphMutation::kNotRetiredWhenMoved, GraphMutation::kReadsOfTheFirst,
        GraphMutation::kAnswersOfFirst, GraphMutation::kVocabOfTheFirst,
        GraphMutation::kStagedAfterwards}) {
    static_cast<void>(expected());
    graph_mutation = bug;
    LazyDevices devices({});
    EXPECT_TRUE(is_wrong(devices)) << static_cast<int>(bug);
    graph_mutation = GraphMutation::kNone;
  }
}
#endif

}  // namespace
}  // namespace tandem
