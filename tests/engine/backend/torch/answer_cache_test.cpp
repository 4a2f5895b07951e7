// Chains of drafts on lazy queues (queue/lazy_queue.h): each draft's input is the previous draft,
// on the device, and the host reads none before the last pass is launched.
#include "engine/backend/torch/answer_cache.h"

#include <c10/util/Exception.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/backend/torch/step_graphs.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"

namespace tandem {
namespace {

constexpr PoolSize kSize = {.page_rows = 4, .pages = 60, .frontier_pages = 4};
constexpr int kDrafts = 3;
constexpr int kRounds = 4;
// The fewest replays of all rounds. The first rounds launch: shapes are new and buffers move.
constexpr int kReplays = (kRounds - 2) * (kDrafts + 1);

const TinyModel& tiny() {
  static const TinyModel* const model = [] {
    DecoderConfig config = tiny_config();
    config.layers = 2;
    return new TinyModel(tiny_model(config));
  }();
  return *model;
}

In chosen(TicketId ticket, int rank = kDrawn) {
  In in;
  in.kind = In::kChosen;
  in.id = rank;
  in.ref.ticket = ticket;
  return in;
}

// A draw that later passes take as input.
Pass draft(In in, float temperature) {
  Pass p;
  p.stage.to = 2;
  p.add.chain(in);
  Read read;
  read.rows = {0};
  read.draw = read.logprob = true;
  read.top = 2;
  read.warp.temperature = temperature;
  read.warp.seed = 9;
  p.share = true;
  p.reading(read);
  return p;
}

// One sequence drafts and another verifies, each round by four batches: greedily, by a draw, and
// the last draft of every other round is the second best token.
struct Round {
  std::deque<Pass> passes;
  std::vector<std::vector<Driver::Item>> batches;
};
Round round_of(Sequence& drafter, Sequence& target, Token token, int number) {
  const float temperature = number % 2 == 0 ? 0.0f : 0.8f;
  Round r;
  Pass verify;
  verify.stage.to = 2;
  In next = token_in(token);
  for (int i = 0; i < kDrafts; ++i) {
    const TicketId ticket = Driver::new_ticket();
    verify.add.chain(next);
    r.passes.push_back(draft(next, temperature));
    r.batches.push_back({{.sequence = &drafter, .pass = &r.passes.back(), .ticket = ticket}});
    next = chosen(ticket, i == kDrafts - 1 && number % 2 == 1 ? 1 : kDrawn);
  }
  verify.add.chain(next);
  Read read;
  for (Row row = 0; row <= kDrafts; ++row) read.rows.push_back(row);
  read.match = true;
  read.logprob = true;
  read.warp.temperature = temperature;
  read.warp.seed = 9;
  r.passes.push_back(verify.reading(read));
  r.batches.push_back({{.sequence = &target, .pass = &r.passes.back()}});
  return r;
}

using Said = std::vector<float>;

void append(Said& said, const std::vector<BatchResult>& results) {
  for (const BatchResult& b : results) {
    EXPECT_TRUE(b.status.ok()) << b.status;
    for (const WorkResult& w : b.works) {
      EXPECT_TRUE(w.status.ok()) << w.status;
      said.push_back(static_cast<float>(w.readout.accepted));
      for (const Out& o : w.readout.row) {
        said.push_back(static_cast<float>(o.token));
        said.push_back(o.logprob == o.logprob ? o.logprob : 0);  // behind a rejected draft
        for (const Ranked& r : o.top) said.push_back(r.logprob + static_cast<float>(r.token));
      }
    }
  }
}

// `kept`: how many drafts stayed in each round.
Said chains(
    const std::shared_ptr<TorchShared>& shared, const std::function<void()>& seen = [] {},
    std::vector<int>* kept = nullptr) {
  Said said;
  Driver d(tiny(), shared, 0, kSize);
  Sequence drafter = d.sequence(), target = d.sequence();
  const std::vector<Token> prompt = random_tokens(9, 64, 4);
  d.run(drafter, chain_pass(2, prompt));
  d.run(target, chain_pass(2, prompt));
  for (int i = 0; i < kRounds; ++i) {
    const Round r = round_of(drafter, target, 5 + i, i);
    const std::vector<BatchResult> results = d.run_chain(r.batches, seen);
    append(said, results);
    if (kept != nullptr) kept->push_back(results.back().works.front().readout.accepted);
    d.truncate(drafter, 9 + i);
    d.truncate(target, 9 + i);
  }
  return said;
}

const Said& expected() {
  static const auto* const said = new Said(chains(std::make_shared<TorchShared>()));
  return *said;
}

std::shared_ptr<TorchShared> shared_of(LazyDevices& devices) {
  return std::make_shared<TorchShared>(devices.make_queue());
}

int calls(const LazyDevices& devices, QueueCall call) {
  return devices.calls()[static_cast<size_t>(call)];
}

bool is_wrong(LazyDevices& devices) {
  testing::TestPartResultArray failures;
  const testing::ScopedFakeTestPartResultReporter quiet(
      testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
  const Said got = chains(shared_of(devices));
  return failures.size() > 0 || got != expected();
}

class ChainedDrafts : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCpu)
      GTEST_SKIP() << "a CPU's kernels, whatever there is";
  }
  void TearDown() override { test_device_graphs = true; }
};

// Greedy and drawn chains have drafts that stay and drafts that do not.
TEST_F(ChainedDrafts, AreThoseThatTheHostHasSeen) {
  std::vector<int> kept;
  chains(std::make_shared<TorchShared>(), [] {}, &kept);
  EXPECT_TRUE(std::ranges::any_of(kept, [](int drafts) { return drafts > 0; }));
  EXPECT_TRUE(std::ranges::any_of(kept, [](int drafts) { return drafts < kDrafts; }));
  for (uint64_t seed = 0; seed < 4; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed % 2 == 1});
    EXPECT_EQ(chains(shared_of(devices)), expected());
    EXPECT_EQ(devices.fault(), "");
    EXPECT_GE(calls(devices, QueueCall::kReplay), kReplays);
  }
}

// The host reads the first draft after all passes of the round are queued, each by one replay, and
// waits once per batch.
TEST_F(ChainedDrafts, AreAllReplayedBeforeTheHostSeesOne) {
  LazyDevices devices({});
  std::vector<std::array<int, kQueueCalls>> at;  // when each round's first draft is seen
  chains(shared_of(devices), [&] { at.push_back(devices.calls()); });
  ASSERT_EQ(at.size(), static_cast<size_t>(kRounds));
  // Once buffers are as large as they will be, each round: the drafts and the verification are put
  // before its first one is seen; waits are the three that were left of the round before, and one.
  for (size_t i = 2; i < at.size(); ++i) {
    const auto made = [&](QueueCall call) {
      const auto of = static_cast<size_t>(call);
      return at[i][of] - at[i - 1][of];
    };
    EXPECT_EQ(made(QueueCall::kReplay), kDrafts + 1) << i;
    EXPECT_EQ(made(QueueCall::kLaunch), 0) << i;
    EXPECT_EQ(made(QueueCall::kSynchronize), kDrafts + 1) << i;
  }
}

// The time of a batch begins at the end of the previous batch.
TEST_F(ChainedDrafts, TimesDoNotOverlap) {
  LazyDevices devices({});
  Driver d(tiny(), shared_of(devices), 0, kSize);
  Sequence drafter = d.sequence(), target = d.sequence();
  for (Sequence* const s : {&drafter, &target}) d.run(*s, chain_pass(2, random_tokens(5, 64, 4)));
  for (int i = 0; i < kRounds; ++i) {
    const Round r = round_of(drafter, target, 3, i);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<BatchResult> results = d.run_chain(r.batches);
    const Duration all = std::chrono::steady_clock::now() - start;
    Duration sum{};
    for (const BatchResult& b : results) sum += b.busy;
    EXPECT_GT(sum, Duration::zero());
    EXPECT_LE(sum, all) << i;
    d.truncate(drafter, 5);
    d.truncate(target, 5);
  }
}

// Without graphs each batch ends before the next begins, with the same answers.
TEST_F(ChainedDrafts, GoByTheHostWhereStepsAreNotReplayed) {
  test_device_graphs = false;
  LazyDevices devices({});
  EXPECT_EQ(chains(shared_of(devices)), expected());
  EXPECT_EQ(calls(devices, QueueCall::kCapture), 0);
  EXPECT_EQ(calls(devices, QueueCall::kReplay), 0);
}

TEST_F(ChainedDrafts, EveryCopyReplayAndWaitThatIsLeftOutIsSeen) {
  for (const QueueCall call : {QueueCall::kCopy, QueueCall::kReplay, QueueCall::kSynchronize}) {
    // The first waits are for pools and prompts, from which nothing is read.
    for (int n = call == QueueCall::kSynchronize ? 3 : 0; n < 12; ++n) {
      LazyDevices devices({});
      devices.skip(call, n);
      EXPECT_TRUE(is_wrong(devices) || !devices.skipped_something()) << name_of(call) << n;
      if (call == QueueCall::kReplay && n < kReplays) EXPECT_TRUE(devices.skipped_something()) << n;
    }
  }
}

// A draft that names nothing, or a rank that was not requested, fails alone, with the passes that
// depend on it.
TEST_F(ChainedDrafts, ThatNameNothingFailAlone) {
  LazyDevices devices({});
  Driver d(tiny(), shared_of(devices), 0, kSize);
  Sequence a = d.sequence(), b = d.sequence();
  for (Sequence* const s : {&a, &b}) d.run(*s, chain_pass(2, random_tokens(5, 64, 4)));
  for (const int rank : {kDrawn, 2}) {
    const TicketId first = Driver::new_ticket(), second = Driver::new_ticket();
    std::deque<Pass> passes{draft(token_in(3), 0),
                            draft(chosen(rank == 2 ? first : 999999, rank), 0),
                            draft(chosen(second), 0), draft(token_in(4), 0)};
    const std::vector<std::vector<Driver::Item>> batches{
        {{.sequence = &a, .pass = &passes[0], .ticket = first}},
        {{.sequence = &a, .pass = &passes[1], .ticket = second}},
        {{.sequence = &a, .pass = &passes[2]}, {.sequence = &b, .pass = &passes[3]}}};
    const auto results = d.run_chain(batches);
    EXPECT_TRUE(results[0].works[0].status.ok());
    EXPECT_EQ(results[1].works[0].status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(results[2].works[0].status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(results[2].works[1].status.ok()) << results[2].works[1].status;
    d.truncate(a, 5);
    d.truncate(b, 5);
  }
}

// The second of three batches in flight meets a device error: the first batch succeeds, the third
// fails with the second, in order.
TEST_F(ChainedDrafts, ADeviceThatFailsBetweenThemEndsTheOthers) {
  LazyDevices devices({});
  Driver d(tiny(), shared_of(devices), 0, kSize);
  Sequence drafter = d.sequence(), target = d.sequence();
  for (Sequence* const s : {&drafter, &target}) d.run(*s, chain_pass(2, random_tokens(5, 64, 4)));
  const Round r = round_of(drafter, target, 3, 0);
  const auto results = d.run_chain(r.batches, [&] {
    devices.fail(
        QueueCall::kSynchronize, 0,
        [] {
          throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: illegal");
        },
        /*for_ever=*/true);
  });
  ASSERT_EQ(results.size(), kDrafts + 1u);
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].status.code(), absl::StatusCode::kUnavailable) << i;
  }
}

// A batch without memory fails, with the batches that follow it, whether the error is reported at
// launch or at the wait. The batch before it succeeds.
TEST_F(ChainedDrafts, AShortageEndsThoseBehindItAlone) {
  for (const QueueCall call : {QueueCall::kLaunch, QueueCall::kSynchronize}) {
    LazyDevices devices({});
    Driver d(tiny(), shared_of(devices), 0, kSize);
    Sequence drafter = d.sequence(), target = d.sequence();
    for (Sequence* const s : {&drafter, &target}) d.run(*s, chain_pass(2, random_tokens(5, 64, 4)));
    const Round r = round_of(drafter, target, 3, 0);
    // The second batch's.
    devices.fail(call, 1, [] { throw std::bad_alloc(); });
    const auto results = d.run_chain(r.batches);
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    for (size_t i = 1; i < results.size(); ++i) {
      EXPECT_EQ(results[i].status.code(), absl::StatusCode::kResourceExhausted) << i;
    }
    d.truncate(drafter, 5);
    Pass again = draft(token_in(3), 0);
    const std::vector<std::vector<Driver::Item>> one{{{.sequence = &drafter, .pass = &again}}};
    EXPECT_TRUE(d.run_chain(one)[0].status.ok());
  }
}

#ifdef TANDEM_MUTATIONS
TEST_F(ChainedDrafts, MutationsAreFound) {
  for (const GraphMutation bug :
       {GraphMutation::kOneArea, GraphMutation::kStagedTokensRun, GraphMutation::kNoAnswerCache}) {
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
