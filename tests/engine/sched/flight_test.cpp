// Lowering of passes to works: chunks, frontiers, trees, and reassembled answers.
#include "engine/sched/flight.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "engine/backend/fake/model.h"
#include "engine/pass/rows.h"
#include "engine/pass/token_history.h"
#include "engine/sampling/readout.h"

namespace tandem {
namespace {

constexpr int kLayers = 4;

struct Bench {
  static ModelShape shape() {
    ModelShape s;
    s.layers = kLayers;
    return s;
  }
  std::vector<Move> log;
  ModelPools pools{ModelId(0), shape(), {4, 64, 64}, &log};
  SequenceCache cache{CacheId(0), &pools};
  std::deque<PassFlight> flights;

  // Submits as SequenceRun does.
  PassFlight& fly(Pass pass) {
    PassFlight& f = flights.emplace_back();
    f.id = 7;
    f.pass = std::move(pass);
    f.cache = &cache;
    cache.reserve(cache.rows() + f.rows(), f.pass.stage.to);
    prepare(f);
    cache.append(f.pass.stage.to, f.pass.add);
    return f;
  }
};

Pass chain(int n, int to = kLayers) {
  Pass p;
  p.stage = {CacheId(0), to};
  for (int i = 0; i < n; ++i) p.add.chain(token_in(i));
  return p;
}

Read reading(RowList rows) {
  Read r;
  r.rows = std::move(rows);
  return r;
}

TEST(Flight, AChainSplitsAnywhereBeforeItsLastRow) {
  EXPECT_EQ(Bench().fly(chain(6)).splittable, 5);
  EXPECT_EQ(Bench().fly(chain(1)).splittable, 0);
  EXPECT_EQ(Bench().fly(chain(0)).splittable, 0);
  Pass p = chain(6);
  p.reading(reading({0, 3, 5}));
  EXPECT_EQ(Bench().fly(std::move(p)).splittable, 5);
}

TEST(Flight, AnEncoderDoesNotSplit) {
  Pass p = chain(6);
  p.see = See::kAll;
  EXPECT_EQ(Bench().fly(std::move(p)).splittable, 0);
}

TEST(Flight, ReadsThatBelongTogetherAreNotCut) {
  Pass kept = chain(8);
  kept.reading(reading({5, 6, 7}));
  kept.read[0].keep = true;
  EXPECT_EQ(Bench().fly(std::move(kept)).splittable, 5);
  Pass judged = chain(8);
  judged.reading(reading({4, 5, 6, 7}));
  judged.read[0].against.ticket = 7;
  EXPECT_EQ(Bench().fly(std::move(judged)).splittable, 4);
  Pass matched = chain(8);
  matched.reading(reading({4, 5, 6, 7}));
  matched.read[0].match = true;
  EXPECT_EQ(Bench().fly(std::move(matched)).splittable, 4);
}

TEST(Flight, ATreeSplitsBehindItsTrunk) {
  Pass p = chain(5);  // a prompt whose last row is the root
  const Row a = p.add.add(token_in(9), 4), b = p.add.add(token_in(8), 4);
  p.add.add(token_in(7), a);
  In mask;
  mask.kind = In::kMask;
  p.add.add(mask, b);
  EXPECT_EQ(Bench().fly(std::move(p)).splittable, 5);

  Pass roots = chain(1);  // two rows on the past
  roots.add.add(token_in(1), -1);
  EXPECT_EQ(Bench().fly(std::move(roots)).splittable, 0);
}

TEST(Flight, AFrontierRunsWithTheFirstChunk) {
  Bench bench;
  bench.fly(chain(5, 2));
  Pass p = chain(6);
  p.reading(reading({-5, -1, 0, 5}));
  PassFlight& f = bench.fly(std::move(p));
  EXPECT_EQ(f.base, 5);
  EXPECT_EQ(f.past, 0);
  EXPECT_EQ(f.frontier, (std::vector<int>(5, 2)));
  EXPECT_EQ(f.outputs, 4);
  EXPECT_EQ(f.fixed_rows(), 5);

  const Work first = lower(f, 2);
  EXPECT_EQ(first.past, 0);
  EXPECT_EQ(first.run_rows(), 7);
  EXPECT_FALSE(first.last);
  EXPECT_FALSE(first.save_frontier);
  EXPECT_EQ(first.pages.size(), 2U);
  EXPECT_EQ(first.frontier_pages.size(), 2U);
  ASSERT_EQ(first.outputs.size(), 3U);
  EXPECT_EQ(first.outputs[0].run_row, 0);
  EXPECT_EQ(first.outputs[1].run_row, 4);
  EXPECT_EQ(first.outputs[2].run_row, 5);
  EXPECT_EQ(run_positions(first), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));

  f.begun = true;
  f.started = 2;
  EXPECT_EQ(f.fixed_rows(), 0);
  const Work second = lower(f, 4);
  EXPECT_EQ(second.past, 7);
  EXPECT_TRUE(second.frontier.empty());
  EXPECT_TRUE(second.last);
  ASSERT_EQ(second.outputs.size(), 1U);
  EXPECT_EQ(second.outputs[0].out, 3);
  EXPECT_EQ(second.outputs[0].run_row, 3);
  EXPECT_EQ(run_positions(second), (std::vector<int>{7, 8, 9, 10}));
}

TEST(Flight, PositionsFollowTheTree) {
  Bench bench;
  bench.fly(chain(3));
  Pass p = chain(2);
  const Row a = p.add.add(token_in(9), 1);
  p.add.add(token_in(8), 1);
  p.add.add(token_in(7), a);
  PassFlight& f = bench.fly(std::move(p));
  EXPECT_EQ(run_positions(lower(f, 5)), (std::vector<int>{3, 4, 5, 5, 6}));
  f.begun = true;
  f.started = 2;
  const Work rest = lower(f, 3);
  EXPECT_EQ(run_positions(rest), (std::vector<int>{5, 5, 6}));
  EXPECT_EQ(parent_run_row(rest, 0), -1);
  EXPECT_EQ(parent_run_row(rest, 1), -1);
  EXPECT_EQ(parent_run_row(rest, 2), 0);
}

TEST(Flight, PassesThatStopEarlySaveTheirRows) {
  Bench bench;
  PassFlight& f = bench.fly(chain(6, 2));
  const Work w = lower(f, 6);
  EXPECT_TRUE(w.save_frontier);
  EXPECT_EQ(w.to, 2);
  EXPECT_EQ(w.frontier_pages.size(), 2U);
}

TEST(Flight, WhatItAwaitsAndLeaves) {
  Pass p = chain(1);
  In in;
  in.kind = In::kChosen;
  in.ref.ticket = 3;
  p.add.chain(in);
  p.reading(reading({0, 1}));
  p.read[0].against.ticket = 5;
  p.read[0].against.more = {6};
  Bench bench;
  const PassFlight& f = bench.fly(std::move(p));
  EXPECT_EQ(f.awaits, (std::vector<TicketId>{3, 5, 6}));
  EXPECT_FALSE(f.leaves_values);
  Pass shared = chain(1);
  shared.share = true;
  EXPECT_TRUE(bench.fly(std::move(shared)).leaves_values);
  Pass kept = chain(1);
  kept.reading(reading({0}));
  kept.read[0].keep = true;
  EXPECT_TRUE(bench.fly(std::move(kept)).leaves_values);
}

Pass counting(Pass p, RowList rows = {}) {
  Processors processors;
  processors.repetition_penalty = 2;
  if (rows.empty()) rows = {static_cast<Row>(p.add.size()) - 1};
  Read r = reading(std::move(rows));
  r.warp.processors = std::make_shared<Processors>(processors);
  return std::move(p.reading(std::move(r)));
}

TEST(Flight, BringsTheTokensOfTheRowsBefore) {
  Bench bench;
  Pass past = chain(3);
  In in;
  in.kind = In::kChosen;
  in.ref.ticket = 3;
  past.add.chain(in);
  in.kind = In::kMask;
  past.add.chain(in);
  bench.fly(std::move(past));

  PassFlight& f = bench.fly(counting(chain(4), {1, 3}));
  const Work first = lower(f, 2);
  EXPECT_EQ(first.history, (std::vector<Token>{0, 1, 2, -1, -2}));
  EXPECT_EQ(first.history_begin, 0);
  ASSERT_EQ(first.history_chosen.size(), 1U);
  EXPECT_EQ(first.history_chosen[0].first, 3);
  EXPECT_EQ(first.history_chosen[0].second.ref.ticket, 3U);
  f.begun = true;
  f.started = 2;
  EXPECT_EQ(lower(f, 2).history, (std::vector<Token>{0, 1, 2, -1, -2, 0, 1}))
      << "the first chunk is history to the second";

  // A later pass, submitted before either has run.
  EXPECT_EQ(lower(bench.fly(counting(chain(1))), 1).history,
            (std::vector<Token>{0, 1, 2, -1, -2, 0, 1, 2, 3}));
  EXPECT_EQ(lower(f, 2).history.size(), 7U) << "later tokens are not";

  // Rows that the device knows already are not brought again.
  for (const Token t : {0, 1, 2, 9, -2}) first.token_history->append(t);
  const Work second = lower(f, 2);
  EXPECT_EQ(second.token_history, first.token_history);
  EXPECT_EQ(second.history_begin, 5);
  EXPECT_EQ(second.history, (std::vector<Token>{0, 1}));
  EXPECT_TRUE(second.history_chosen.empty());
}

TEST(Flight, AChunkWithoutOutputsBringsNoHistory) {
  Bench bench;
  PassFlight& f = bench.fly(counting(chain(4)));
  const Work first = lower(f, 2);
  EXPECT_TRUE(first.history.empty());
  EXPECT_EQ(first.token_history, nullptr);
  f.begun = true;
  f.started = 2;
  EXPECT_EQ(lower(f, 2).history, (std::vector<Token>{0, 1}));
}

// Steps of decoding with a penalty, each with drafts that are rejected: the copies for a pass and
// the counting of its answers are bounded by its rows, whatever the length of the text.
TEST(Flight, PenaltiesCostAsMuchAsThePassHasRows) {
  constexpr int kDrafts = 3;
  for (const int prompt : {8, 120}) {
    Bench bench;
    RowReader reader(nullptr);
    bench.fly(chain(prompt));
    for (int step = 0; step < 60; ++step) {
      const Work work = lower(bench.fly(counting(chain(1 + kDrafts))), 1 + kDrafts);
      const int64_t before = work.token_history->counts().updates();
      std::vector<float> logits(200, 1.0F);
      reader.begin(work);
      ASSERT_TRUE(reader.read(work.outputs[0], logits, work.past + kDrafts).ok());
      const int64_t updates = work.token_history->counts().updates() - before;
      if (step > 0) {
        EXPECT_LE(work.history.size(), 1U) << prompt << " " << step;
        EXPECT_LE(updates, 1 + 2 * (1 + kDrafts)) << prompt << " " << step;
      }
      bench.cache.truncate(prompt + step + 1);
    }
  }
}

TEST(Flight, BringsNoHistoryWhereNothingCountsIt) {
  Bench bench;
  bench.fly(chain(3));
  Pass p = chain(1);
  p.reading(reading({0}));
  Processors bias;
  bias.bias = {{1, 2.0F}};
  p.read[0].warp.processors = std::make_shared<Processors>(bias);
  EXPECT_TRUE(lower(bench.fly(std::move(p)), 1).history.empty());
}

// The answer to output `out`, a function of its number.
Readout answer(const Work& w) {
  Readout r;
  std::vector<size_t> begin;
  for (const Work::Output& o : w.outputs) {
    Out out;
    out.token = 100 + o.out;
    r.row.push_back(out);
    begin.push_back(r.ranked.size());
    for (int k = 0; k < o.out % 3; ++k) r.ranked.push_back({o.out * 10 + k, 0.5F});
  }
  r.accepted = static_cast<int>(r.row.size());
  begin.push_back(r.ranked.size());
  for (size_t i = 0; i < r.row.size(); ++i) {
    r.row[i].top = std::span<const Ranked>(r.ranked).subspan(begin[i], begin[i + 1] - begin[i]);
  }
  return r;
}

TEST(Flight, AnswersDoNotShowTheCut) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 rng(seed);
    Bench bench;
    const int frontier = static_cast<int>(rng() % 4), n = 1 + static_cast<int>(rng() % 12);
    if (frontier > 0) bench.fly(chain(frontier, 1));
    Pass p = chain(n);
    int outputs = 0;
    for (size_t i = 0, reads = rng() % 4; i < reads; ++i) {
      RowList rows;
      for (Row row = -frontier; row < n; ++row) {
        if (rng() % 3 == 0) rows.push_back(row);
      }
      outputs += static_cast<int>(rows.size());
      p.reading(reading(rows));
    }
    PassFlight& f = bench.fly(std::move(p));
    while (f.started < n) {
      const int left = f.splittable - f.started;
      const int count = left > 0 && rng() % 3 ? 1 + static_cast<int>(rng() % left) : n - f.started;
      const Work w = lower(f, count);
      f.started += count;
      f.begun = true;
      absorb(f, w, answer(w));
    }
    ASSERT_EQ(f.readout.row.size(), static_cast<size_t>(outputs));
    ASSERT_EQ(f.readout.accepted, outputs);
    for (int out = 0; out < outputs; ++out) {
      const Out& o = f.readout.row[static_cast<size_t>(out)];
      ASSERT_EQ(o.token, 100 + out);
      ASSERT_EQ(o.top.size(), static_cast<size_t>(out % 3));
      for (int k = 0; k < out % 3; ++k) {
        ASSERT_EQ(o.top[static_cast<size_t>(k)].token, out * 10 + k);
      }
    }
  }
}

TEST(FlightDeathTest, ReadsOfRowsThatDoNotRun) {
  Bench bench;
  bench.fly(chain(3));
  Pass past = chain(1);
  past.reading(reading({-1}));  // has done all layers
  EXPECT_DEATH(bench.fly(std::move(past)), "broken invariant");
  Pass beyond = chain(1);
  beyond.reading(reading({1}));
  EXPECT_DEATH(bench.fly(std::move(beyond)), "broken invariant");
}

}  // namespace
}  // namespace tandem
