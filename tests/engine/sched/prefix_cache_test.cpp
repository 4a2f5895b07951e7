// Sequences share rows, also with themselves after preemption, and answers do not change. Fake
// devices check that each page holds the rows that its readers expect.
#include <limits>

#include "engine/decode/score.h"
#include "tests/engine/decode/sketches.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

std::vector<Token> text(uint64_t seed, int n) {
  std::mt19937_64 rng(seed);
  return random_prompt(rng, n, n);
}

std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Counts the rows that devices run.
struct Rows {
  explicit Rows(Box& box) {
    for (FakeBackend& b : box.backends) {
      b.set_faults([this](const Batch& batch) {
        if (!batch.works.empty()) by_model[batch.works.front().model] += batch.run_rows();
        return Fault();
      });
    }
  }
  int64_t all() const {
    int64_t sum = 0;
    for (const auto& [model, rows] : by_model) sum += rows;
    return sum;
  }
  std::map<ModelId, int64_t> by_model;
};

TEST(LoopPrefix, WhatTwoPromptsHaveInCommonRunsOnce) {
  Box box{BoxOptions()};
  const Rows rows(box);
  const auto common = text(1, 14);
  const auto one = joined(common, text(2, 6)), two = joined(common, text(3, 9));
  const auto a = box.submit(box.spec(one, 5));
  box.pump();
  EXPECT_EQ(rows.all(), 20 + 4);
  const auto b = box.submit(box.spec(two, 5));
  box.pump();
  EXPECT_EQ(a->tokens, box.greedy(one, 5));
  EXPECT_EQ(b->tokens, box.greedy(two, 5));
  EXPECT_EQ(a->end.stats.cached_tokens, 0);
  EXPECT_EQ(b->end.stats.cached_tokens, 14) << "three pages of four rows, and half of a page";
  EXPECT_EQ(rows.all(), 20 + 4 + (23 - 14) + 4);
  EXPECT_EQ(box.metrics.prefix_cache_queries.value(), 19 + 22);
  EXPECT_EQ(box.metrics.prefix_cache_hits.value(), 14);
  box.expect_idle();
  EXPECT_GT(box.pools().kv.cached(), 0);
  EXPECT_EQ(box.metrics.models[0].kv_pages_cached.value(), box.pools().kv.cached());
}

TEST(LoopPrefix, TheLastTokensRowAlwaysRuns) {
  for (int n = 1; n < 14; ++n) {
    Box box{BoxOptions()};
    const auto prompt = text(4, n);
    const auto a = box.submit(box.spec(prompt, 3));
    box.pump();
    const auto b = box.submit(box.spec(prompt, 3));
    box.pump();
    EXPECT_EQ(b->end.stats.cached_tokens, std::min(n - 1, (n + 2) / 4 * 4)) << "of full pages";
    EXPECT_EQ(a->tokens, b->tokens);
    box.expect_idle();
  }
}

// The next turn of a conversation starts with the previous prompt and answer.
TEST(LoopPrefix, AnswersAreFoundAgainToo) {
  Box box{BoxOptions()};
  const auto prompt = text(5, 10);
  const auto a = box.submit(box.spec(prompt, 15));
  box.pump();
  const auto next = joined(joined(prompt, a->tokens), text(6, 5));
  const auto b = box.submit(box.spec(next, 4));
  box.pump();
  EXPECT_EQ(b->end.stats.cached_tokens, 24) << "25 tokens; the last one was never an input";
  EXPECT_EQ(b->tokens, box.greedy(next, 4));
}

TEST(LoopPrefix, RunningSequencesShareTheirPages) {
  Box box{BoxOptions()};
  const auto prompt = text(7, 33);
  const auto a = box.submit(box.spec(prompt, 30));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() > 2; }));
  const int64_t alone = box.pools().kv.used();
  const auto b = box.submit(box.spec(prompt, 3));
  ASSERT_TRUE(box.pump_until([&] { return b->tokens.size() > 1; }));
  EXPECT_LE(box.pools().kv.used(), alone + 3);
  EXPECT_EQ(box.loop->check_pages(), "");
  box.pump();
  EXPECT_EQ(a->tokens, box.greedy(prompt, 30));
  EXPECT_EQ(b->tokens, box.greedy(prompt, 3));
  box.expect_idle();
}

TEST(LoopPrefix, TwoThatRunTheSameAtOnceComeToShareIt) {
  Box box{BoxOptions()};
  const auto prompt = text(8, 33);
  const auto a = box.submit(box.spec(prompt, 20)), b = box.submit(box.spec(prompt, 20));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() > 2 && b->tokens.size() > 2; }));
  EXPECT_LE(box.pools().kv.used(), 8 + 2 + 2);
  box.pump();
  EXPECT_EQ(a->tokens, box.greedy(prompt, 20));
  EXPECT_EQ(b->tokens, a->tokens);
  box.expect_idle();
}

TEST(LoopPrefix, SaltsAndSwitches) {
  const auto prompt = text(9, 20);
  struct Case {
    bool model, first, second;
    const char *salt_one, *salt_two;
    int64_t cached;
    const char* second_client = "";
  };
  for (const Case& c :
       {Case{true, true, true, "", "", 19}, Case{true, true, true, "a", "a", 19},
        Case{true, true, true, "a", "b", 0}, Case{true, true, true, "", "b", 0},
        Case{false, true, true, "", "", 0}, Case{true, false, true, "", "", 0},
        Case{true, true, false, "", "", 0}, Case{true, true, true, "", "", 16, "another"}}) {
    BoxOptions o;
    o.models[0].prefix_cache = c.model;
    Box box{o};
    SequenceSpec one = box.spec(prompt, 3), two = box.spec(prompt, 3);
    one.salt = c.salt_one;
    two.salt = c.salt_two;
    two.client = c.second_client;  // whole pages only
    one.prefix_cache = c.first;
    two.prefix_cache = c.second;
    const auto a = box.submit(std::move(one));
    box.pump();
    const auto b = box.submit(std::move(two));
    box.pump();
    EXPECT_EQ(b->end.stats.cached_tokens, c.cached);
    EXPECT_EQ(b->tokens, a->tokens);
    if (!c.model) EXPECT_EQ(box.pools().kv.cached(), 0);
    box.expect_idle();
  }
}

TEST(LoopPrefix, RowsOfFailedPassesAreNotFound) {
  for (const int at : {2, 4}) {  // in the prompt's last chunk, while decoding
    BoxOptions o;
    o.limits.prefill_chunk_rows = 8;
    Box box{o};
    int batches = 0;
    box.backends[0].set_faults([&](const Batch&) {
      Fault f;
      if (batches++ == at) f.nan_works = {0};
      return f;
    });
    const auto prompt = text(10, 21);
    const auto a = box.submit(box.spec(prompt, 9));
    box.pump();
    EXPECT_EQ(a->end.status.code(), absl::StatusCode::kInternal);
    const auto b = box.submit(box.spec(prompt, 9));
    box.pump();
    EXPECT_EQ(b->end.stats.cached_tokens, at == 2 ? 0 : 20);
    EXPECT_EQ(b->tokens, box.greedy(prompt, 9));
    box.expect_idle();
  }
}

TEST(LoopPrefix, WhatACancelledRequestHasRunIsFound) {
  Box box{BoxOptions()};
  const auto prompt = text(11, 18);
  const auto a = box.submit(box.spec(prompt, 100));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() == 9; }));
  box.loop->stop(1, absl::CancelledError("by the client"));
  box.pump();
  box.expect_idle();
  const auto again = joined(joined(prompt, a->tokens), {1, 2, 3});
  const auto b = box.submit(box.spec(again, 2));
  box.pump();
  EXPECT_EQ(b->end.stats.cached_tokens, 24) << "26 rows, with the one that was under way";
  EXPECT_EQ(b->tokens, box.greedy(again, 2));
}

// Scoring reads rows, which must run; earlier rows may be shared.
TEST(LoopPrefix, ScoredRowsRun) {
  const auto prompt = text(12, 22);
  for (const int begin : {1, 2, 9, 10, 21}) {
    std::vector<Scored> fresh, cached;
    Box box{BoxOptions()};
    for (std::vector<Scored>* out : {&fresh, &cached}) {
      SequenceSpec s = box.spec(prompt, 1);
      s.method = [out, begin](Gen g) { return score(g, begin, 3, out); };
      const auto r = box.submit(std::move(s));
      box.pump();
      ASSERT_TRUE(r->ok());
      EXPECT_EQ(r->end.stats.cached_tokens, out == &fresh ? 0 : begin - 1);
    }
    ASSERT_EQ(fresh.size(), prompt.size() - static_cast<size_t>(begin));
    ASSERT_EQ(cached.size(), fresh.size());
    for (size_t i = 0; i < fresh.size(); ++i) {
      EXPECT_EQ(cached[i].logprob, fresh[i].logprob);
      EXPECT_EQ(cached[i].top.size(), 3U);
    }
  }
}

Task<void> reads_from(Gen g, int first, std::vector<int>* rows) {
  const Stage L = g.stage(Role::kLarge);
  co_await g.round({{L, g.missing(L), first}});
  rows->push_back(static_cast<int>(g.seq().size()) - g.missing(L));
  Readout r = co_await g.submit(g.catch_up(L));
}

TEST(LoopPrefix, AMethodSaysWhichRowsItRuns) {
  Box box{BoxOptions()};
  const auto prompt = text(13, 20);
  std::vector<int> rows;
  for (const int first : {0, 3, 4, 11, 19, 20, std::numeric_limits<int>::max()}) {
    SequenceSpec s = box.spec(prompt, 1);
    s.method = [&rows, first](Gen g) { return reads_from(g, first, &rows); };
    box.submit(std::move(s));
    box.pump();
  }
  EXPECT_EQ(rows, (std::vector<int>{0, 3, 4, 11, 19, 19, 19}));
}

// --- Memory

TEST(LoopPrefix, CachedPagesAreReclaimedForNewRows) {
  BoxOptions o;
  o.models[0].pool.pages = 10;
  Box box{o};
  for (uint64_t i = 0; i < 12; ++i) {
    const auto prompt = text(20 + i, 30);
    const auto r = box.submit(box.spec(prompt, 6));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    EXPECT_EQ(r->tokens, box.greedy(prompt, 6));
    EXPECT_EQ(r->end.stats.preemptions, 0);
    const PagePool& kv = box.pools().kv;
    EXPECT_EQ(kv.free() + kv.cached(), kv.total());
    EXPECT_GE(kv.cached(), 8) << "the last one's";
    box.expect_idle();
  }
}

// Admission counts shared pages once: the second request needs pages for its own rows only.
TEST(LoopPrefix, AdmissionCountsWhatIsShared) {
  BoxOptions o;
  o.models[0].pool.pages = 14;
  o.models[0].config.pass_seconds = 1;
  Box box{o};
  const auto prompt = text(40, 41);  // eleven pages, of which ten are full
  const auto a = box.submit(box.spec(prompt, 4));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() == 2; }));
  const auto b = box.submit(box.spec(prompt, 3));
  ASSERT_TRUE(box.pump_until([&] { return b->admitted == 1; }));
  EXPECT_EQ(a->ends, 0);
  box.pump();
  EXPECT_EQ(a->tokens, box.greedy(prompt, 4));
  EXPECT_EQ(b->tokens, box.greedy(prompt, 3));
  EXPECT_EQ(box.metrics.preemptions.value(), 0);
}

struct Course {
  int64_t rows = 0, preemptions = 0;
};

// A low-priority request is preempted by a short one, then resumes where it stopped.
Course interrupted(bool prefix_cache) {
  BoxOptions o;
  o.models[0].pool.pages = 14;
  o.models[0].prefix_cache = prefix_cache;
  Box box{o};
  const Rows rows(box);
  const auto prompt = text(50, 30), other = text(51, 20);
  SequenceSpec low = box.spec(prompt, 20);
  low.priority = -1;
  const auto a = box.submit(std::move(low));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() == 2; })), Course();
  const auto b = box.submit(box.spec(other, 12));
  box.pump();
  EXPECT_EQ(a->tokens, box.greedy(prompt, 20));
  EXPECT_EQ(b->tokens, box.greedy(other, 12));
  EXPECT_EQ(b->end.stats.preemptions, 0);
  EXPECT_EQ(a->end.stats.cached_tokens, 0) << "what it ran itself does not count";
  box.expect_idle();
  return {rows.all(), a->end.stats.preemptions};
}

TEST(LoopPrefix, ResumingTakesBackWhatIsStillThere) {
  const Course with = interrupted(true), without = interrupted(false);
  EXPECT_GT(with.preemptions, 0);
  EXPECT_GT(without.preemptions, 0);
  EXPECT_LT(with.rows + 16, without.rows);
}

// --- Everything together

struct Mix {
  int64_t hits = 0, preemptions = 0;
};

// Several methods on two models with common prefixes and little memory: answers do not change, and
// page counts are right at every step.
Mix mixed(uint64_t seed) {
  std::mt19937_64 rng(seed);
  BoxOptions o;
  o.shuffle = seed;
  o.limits.prefill_chunk_rows = 1 + static_cast<int>(rng() % 20);
  o.models.resize(2);
  o.models[1].config = tiny_model(2);
  o.models[1].device = static_cast<int>(rng() % 2);
  for (BoxModel& m : o.models) {
    m.pool.page_rows = 1 + static_cast<int>(rng() % 5);
    m.pool.pages = (60 + static_cast<int64_t>(rng() % 60)) / m.pool.page_rows + 6;
    m.pool.frontier_pages = 60;
  }
  Box box{o};
  SketchStats stats;
  const auto base = text(seed, 24);
  std::vector<std::pair<SequenceSpec, std::shared_ptr<Recorder>>> all;
  for (int i = 0; i < 14; ++i) {
    std::vector<Token> prompt(base.begin(), base.begin() + static_cast<ptrdiff_t>(rng() % 25));
    prompt = joined(prompt, random_prompt(rng, 1, 8));
    SequenceSpec s = box.spec(prompt, 1 + static_cast<int>(rng() % 10));
    s.priority = static_cast<int>(rng() % 2);
    edit_cast(s).roles.push_back({Role::kSmall, ModelId(1), 0});
    switch (rng() % 5) {
      case 0:
        s.method = [&stats](Gen g) { return bild(g, {4, 0.1F, 0.69F}, &stats); };
        break;
      case 1:
        edit_cast(s).roles[1] = {Role::kSmall, ModelId(0), 2};  // early exit
        s.method = [&stats](Gen g) { return bild(g, {4, 0.1F, 0.69F}, &stats); };
        break;
      case 2:
        s.method = [&stats](Gen g) { return speculative(g, 3, &stats); };
        break;
      case 3:
        s.method = [&stats](Gen g) { return bita(g, {2, 2}, &stats); };
        break;
      default:
        break;
    }
    const int tokens = s.stops.max_new_tokens;
    SequenceSpec kept;
    kept.prompt = s.prompt;
    kept.stops.max_new_tokens = tokens;
    all.emplace_back(std::move(kept), box.submit(std::move(s)));
    const int ticks = static_cast<int>(rng() % 30);
    for (int t = 0; t < ticks && box.tick(); ++t) EXPECT_EQ(box.loop->check_pages(), "");
  }
  while (box.tick()) EXPECT_EQ(box.loop->check_pages(), "");
  int64_t cached = 0, preemptions = 0;
  for (const auto& [s, r] : all) {
    EXPECT_TRUE(r->ok()) << r->end.status;
    EXPECT_EQ(r->tokens, box.greedy(s.prompt, s.stops.max_new_tokens));
    EXPECT_LT(r->end.stats.cached_tokens, static_cast<int64_t>(s.prompt.size()));
    cached += r->end.stats.cached_tokens;
    preemptions += r->end.stats.preemptions;
  }
  EXPECT_LE(cached, box.metrics.prefix_cache_hits.value());
  EXPECT_EQ(preemptions, box.metrics.preemptions.value());
  box.expect_idle();
  return {cached, preemptions};
}

TEST(LoopPrefix, MethodsAndMemoryPressure) {
  Mix sum;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    const Mix m = mixed(seed);
    sum.hits += m.hits;
    sum.preemptions += m.preemptions;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(sum.hits, 1000);
  EXPECT_GT(sum.preemptions, 20);
}

}  // namespace
}  // namespace tandem::test
