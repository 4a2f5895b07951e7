// Choices share the prompt rows of the first one in all caches, and their answers do not change.
#include "engine/decode/autoregressive.h"
#include "tests/engine/decode/sketches.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using Method = std::function<Task<void>(Gen)>;

BoxOptions options(bool prefix_cache, int64_t pages = 256) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(2);
  for (BoxModel& m : o.models) {
    m.prefix_cache = prefix_cache;
    m.pool.pages = pages;
  }
  return o;
}

SequenceSpec request(Box& box, const Method& method, int prompt, int tokens) {
  std::mt19937_64 rng(static_cast<uint64_t>(prompt));
  SequenceSpec s = box.spec(random_prompt(rng, prompt, prompt), tokens);
  s.method = method;
  edit_cast(s).roles.push_back({Role::kSmall, ModelId(1), 0});
  s.warp.temperature = 1.1F;
  s.warp.seed = 5;
  return s;
}

std::vector<Token> alone(const Method& method, int prompt, int tokens, uint32_t choice) {
  Box box{options(false)};
  SequenceSpec s = request(box, method, prompt, tokens);
  s.warp.choice = choice;
  const auto r = box.submit(std::move(s));
  box.pump();
  EXPECT_TRUE(r->ok());
  return r->tokens;
}

struct Sketch {
  const char* name;
  Method method;
};

std::vector<Sketch> sketches(SketchStats* stats) {
  return {{"autoregressive", autoregressive},
          {"bild", [stats](Gen g) { return bild(g, {3, 0.1F, 0.69F}, stats); }},
          {"speculative", [stats](Gen g) { return speculative(g, 3, stats); }},
          {"bita", [stats](Gen g) { return bita(g, {2, 2}, stats); }}};
}

TEST(Adopt, EveryMethodsChoicesAreAsAlone) {
  SketchStats stats;
  for (const Sketch& sketch : sketches(&stats)) {
    for (const int prompt : {1, 2, 4, 5, 8, 13}) {
      for (const bool prefix_cache : {false, true}) {
        for (const int64_t pages : {256, 10}) {
          Box box{options(prefix_cache, pages)};
          const auto all = box.submit(request(box, sketch.method, prompt, 14), 4);
          while (box.tick()) ASSERT_EQ(box.loop->check_pages(), "");
          for (uint32_t i = 0; i < 4; ++i) {
            EXPECT_TRUE(all[i]->ok()) << sketch.name << " " << all[i]->end.status;
            EXPECT_EQ(all[i]->tokens, alone(sketch.method, prompt, 14, i))
                << sketch.name << ", prompt " << prompt << ", choice " << i;
          }
          box.expect_idle();
        }
      }
    }
  }
}

// Four choices of two tokens each. Each model runs the prompt once, except its last row.
TEST(Adopt, ThePromptRunsOnceInEveryCache) {
  SketchStats stats;
  for (const int prompt : {1, 2, 4, 5, 8, 13}) {
    Box box{options(false)};
    std::map<ModelId, int64_t> rows;
    box.backends[0].set_faults([&](const Batch& b) {
      if (!b.works.empty()) rows[b.works[0].model] += b.run_rows();
      return Fault();
    });
    const auto drafts = [&stats](Gen g) { return speculative(g, 3, &stats); };
    const auto all = box.submit(request(box, drafts, prompt, 2), 4);
    box.pump();
    for (const auto& r : all) {
      EXPECT_EQ(r->end.stats.cached_tokens, r == all[0] ? 0 : prompt - 1);
    }
    EXPECT_EQ(rows[ModelId(0)], prompt + 3 + 4);
    EXPECT_EQ(rows[ModelId(1)], prompt + 3) << "the last token needs no draft";
    EXPECT_EQ(box.metrics.prefix_cache_queries.value(), 0);
    box.expect_idle();
  }
}

// The first choice ends while the small model's prompt is under way: the others share the rows in
// memory and run the rest.
TEST(Adopt, WhatIsUnderWayIsNotTaken) {
  SketchStats stats;
  const auto method = [&stats](Gen g) { return bild(g, {3, 0.1F, 0.69F}, &stats); };
  BoxOptions o = options(false);
  o.models[1].device = 1;
  o.models[1].config.pass_seconds = 1;
  Box box{o};
  const auto all = box.submit(request(box, method, 13, 1), 3);
  box.pump();
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i]->tokens, alone(method, 13, 1, i));
    EXPECT_EQ(all[i]->end.stats.cached_tokens, i == 0 ? 0 : 12);
  }
  box.expect_idle();
}

TEST(Adopt, ThePromptsPagesAreSharedWhileItLasts) {
  Box box{options(false)};
  const auto all = box.submit(request(box, autoregressive, 42, 8), 8);
  int64_t most = 0;
  while (box.tick()) most = std::max(most, box.pools(0).kv.used());
  EXPECT_LE(most, 10 + 8 * 3) << "ten full pages together, and each its own behind them";
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(all[i]->tokens, alone(autoregressive, 42, 8, i));
  box.expect_idle();
}

// If the first choice was preempted, the others run the prompt themselves.
TEST(Adopt, AnEvictedLeaderLeavesThePromptToTheOthers) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    BoxOptions o = options(seed % 2 > 0, 8);
    o.shuffle = seed;
    o.limits.prefill_chunk_rows = 3;
    Box box{o};
    SequenceSpec s = request(box, autoregressive, 13, 10);
    const auto all = box.submit(std::move(s), 3);
    for (uint64_t t = 0; t < seed; ++t) box.tick();
    SequenceSpec urgent = box.spec({1, 2, 3, 4, 5, 6, 7, 8, 9}, 15);
    urgent.priority = 1;
    const auto r = box.submit(std::move(urgent));
    while (box.tick()) ASSERT_EQ(box.loop->check_pages(), "");
    EXPECT_EQ(r->tokens, box.greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, 15));
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(all[i]->tokens, alone(autoregressive, 13, 10, i));
      preemptions += all[i]->end.stats.preemptions;
    }
    box.expect_idle();
  }
  EXPECT_GT(preemptions, 20);
}

// Rows from Need::reads_from on are not shared; each stage of the cache has capacity for them.
Task<void> own_rows(Gen g, int from, std::vector<int>* rows) {
  const Stage L = g.stage(Role::kLarge), early{L.cache, 2};
  co_await g.round({{early, g.missing(early), from}, {L, g.missing(L) + 5, from}});
  rows->push_back(static_cast<int>(g.seq().size()) - g.missing(L));
  const std::vector<Token> more = {1, 2, 3, 4, 5};
  Pass p = g.catch_up(L, more);
  p.reading(g.draw({static_cast<Row>(p.add.size()) - 6}));
  Readout r = co_await g.submit(std::move(p));
  std::vector<Emitted> out{g.emitted(r.row[0])};
  g.emit(std::move(out));
}

TEST(Adopt, AMethodSaysWhichRowsItRuns) {
  for (const bool prefix_cache : {false, true}) {
    for (const int from : {0, 3, 8, 100}) {
      Box box{options(prefix_cache)};
      std::vector<int> rows;
      const auto method = [&rows, from](Gen g) { return own_rows(g, from, &rows); };
      const auto all = box.submit(request(box, method, 11, 1), 3);
      box.pump();
      const int had = std::min(from, 10);
      EXPECT_EQ(rows, (std::vector<int>{0, had, had}));
      for (uint32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(all[i]->tokens, alone(autoregressive, 11, 1, i));
      }
      box.expect_idle();
    }
  }
}

}  // namespace
}  // namespace tandem::test
