// LoRA adapters: each work of the large model names the adapter of its request, and rows are shared
// only between requests with the same adapter.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/autoregressive.h"
#include "engine/decode/beam.h"
#include "engine/decode/ngram.h"
#include "engine/decode/score.h"
#include "tests/engine/decode/pairs.h"
#include "tests/engine/decode/sketches.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

const std::vector<Token> kPrompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7};

// The adapters of all works, by request and model, and the rows that each model ran.
struct Works {
  explicit Works(Box& box) {
    for (FakeBackend& b : box.backends) {
      b.set_faults([this](const Batch& batch) {
        for (const Work& w : batch.works) {
          loras[{w.request, w.model}].insert(w.lora);
          rows[w.model] += w.run_rows();
          frontier_rows += w.frontier_rows();
        }
        if (batch.works.size() > 1) {
          std::set<LoraId> together;
          for (const Work& w : batch.works) together.insert(w.lora);
          mixed = std::max(mixed, together.size());
        }
        return Fault();
      });
    }
  }

  std::map<std::pair<RequestId, ModelId>, std::set<LoraId>> loras;
  std::map<ModelId, int64_t> rows;
  int64_t frontier_rows = 0;
  size_t mixed = 0;  // most adapters in one batch
};

SequenceSpec adapted(SequenceSpec s, LoraId lora) {
  s.cast = with_lora(*s.cast, lora);
  return s;
}

// The same cast with an adapter that the large model alone has.
std::set<LoraId> only(int lora) { return {LoraId(lora)}; }

struct Kind {
  const char* name;
  std::vector<CastRole> roles;
  std::function<Task<void>(Gen)> method;
  int width = 1;
};

std::vector<Kind> kinds(SketchStats* stats, std::vector<Scored>* scored) {
  std::vector<CastRole> masked = {{Role::kLarge, ModelId(0)}};
  masked[0].mask_adapter = kAdapter;
  return {
      {"autoregressive", {{Role::kLarge, ModelId(0)}}, autoregressive},
      {"ngram", {{Role::kLarge, ModelId(0)}}, [](Gen g) { return ngram(g, {}); }},
      {"speculative", two_models(), [stats](Gen g) { return speculative(g, 3, stats); }},
      {"bild", two_models(), [stats](Gen g) { return bild(g, {}, stats); }},
      {"early exit", early_exit(2), [stats](Gen g) { return bild(g, {}, stats); }},
      {"bita", masked, [stats](Gen g) { return bita(g, {}, stats); }},
      {"beam", {{Role::kLarge, ModelId(0)}}, [](Gen g) { return beam(g, {.width = 3}); }, 3},
      {"score", {{Role::kLarge, ModelId(0)}}, [scored](Gen g) { return score(g, 1, 2, scored); }},
  };
}

TEST(LoopLora, EachWorkOfTheLargeModelHasTheAdapter) {
  SketchStats stats;
  std::vector<Scored> scored(kPrompt.size());
  for (const Kind& kind : kinds(&stats, &scored)) {
    Box box{pair_of(3, 1)};
    Works works(box);
    SequenceSpec s = box.spec(kPrompt, 12);
    s.cast = make_cast(kind.roles);
    s.method = kind.method;
    s.width = kind.width;
    s.extra_rows = 64;
    const auto base = box.submit(s);
    box.pump();
    ASSERT_TRUE(base->ok()) << kind.name << base->end.status;
    const RequestId first = s.id;
    s.id = ++box.last_id;
    const auto with = box.submit(adapted(s, LoraId(2)));
    box.pump();
    ASSERT_TRUE(with->ok()) << kind.name << with->end.status;
    const auto of = [&](RequestId id, int model) { return works.loras[{id, ModelId(model)}]; };
    EXPECT_EQ(of(first, 0), only(-1)) << kind.name;
    EXPECT_EQ(of(s.id, 0), only(2)) << kind.name;
    const bool drafts = kind.roles.size() > 1 && kind.roles[1].model == ModelId(1);
    EXPECT_EQ(of(s.id, 1), drafts ? only(-1) : std::set<LoraId>()) << kind.name;
    if (kind.name == std::string("early exit")) {
      EXPECT_GT(works.frontier_rows, 0);
    }
    box.expect_idle();
  }
}

TEST(LoopLora, RecomputationAfterPreemptionHasTheAdapter) {
  for (const bool prefix_cache : {false, true}) {
    BoxOptions o;
    o.models[0].pool.pages = 14;
    o.models[0].prefix_cache = prefix_cache;
    Box box{o};
    Works works(box);
    std::mt19937_64 rng(50);
    SequenceSpec low = box.spec(random_prompt(rng, 30, 30), 20);
    low.priority = -1;
    const RequestId preempted = low.id;
    const auto a = box.submit(adapted(std::move(low), LoraId(1)));
    ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() == 2; }));
    const int64_t before = works.rows[ModelId(0)];
    const auto b = box.submit(adapted(box.spec(random_prompt(rng, 20, 20), 12), LoraId(0)));
    box.pump();
    ASSERT_TRUE(a->ok() && b->ok());
    EXPECT_GT(a->end.stats.preemptions, 0);
    EXPECT_EQ(works.loras[(std::pair{preempted, ModelId(0)})], only(1));
    EXPECT_EQ(works.loras[(std::pair{preempted + 1, ModelId(0)})], only(0));
    if (!prefix_cache) {
      EXPECT_GT(works.rows[ModelId(0)] - before, 18 + 20 + 11 + 30) << "the prompt ran again";
    }
    box.expect_idle();
  }
}

// The rows that the prefix cache gives to a second request.
int64_t cached(LoraId first, LoraId second) {
  Box box{BoxOptions()};
  const auto a = box.submit(adapted(box.spec(kPrompt, 3), first));
  box.pump();
  const auto b = box.submit(adapted(box.spec(kPrompt, 3), second));
  box.pump();
  EXPECT_TRUE(a->ok() && b->ok());
  box.expect_idle();
  return b->end.stats.cached_tokens;
}

TEST(LoopLora, PrefixesAreSharedByRequestsOfTheSameAdapterOnly) {
  const LoraId none, sql(0), law(1);
  EXPECT_EQ(cached(none, none), 13);
  EXPECT_EQ(cached(sql, sql), 13);
  EXPECT_EQ(cached(law, law), 13);
  EXPECT_EQ(cached(none, sql), 0);
  EXPECT_EQ(cached(sql, none), 0);
  EXPECT_EQ(cached(sql, law), 0);
}

TEST(LoopLora, PrefixesOfTheDraftModelAreSharedByAll) {
  Box box{pair_of(3, 1)};
  Works works(box);
  SketchStats stats;
  const auto submit = [&](LoraId lora) {
    SequenceSpec s = box.spec(kPrompt, 1);
    s.cast = make_cast(two_models());
    s.method = [&stats](Gen g) { return speculative(g, 2, &stats); };
    s.extra_rows = 8;
    s.stops.max_new_tokens = 4;
    works.rows.clear();
    const auto r = box.submit(adapted(std::move(s), lora));
    box.pump();
    EXPECT_TRUE(r->ok());
    return std::pair(works.rows[ModelId(0)], works.rows[ModelId(1)]);
  };
  const auto [large, small] = submit(LoraId(0));
  const auto [large_of_other, small_of_other] = submit(LoraId(1));
  EXPECT_GE(large, static_cast<int64_t>(kPrompt.size()));
  EXPECT_GE(large_of_other, static_cast<int64_t>(kPrompt.size()));
  EXPECT_LE(small_of_other + 12, small + 4 * 3) << "three pages of four rows were there";
}

TEST(LoopLora, ChoicesShareTheRowsOfTheirPrompt) {
  Box box{BoxOptions()};
  Works works(box);
  SequenceSpec s = box.spec(kPrompt, 5);
  s.warp.temperature = 1;
  const auto choices = box.submit(adapted(std::move(s), LoraId(4)), 3);
  box.pump();
  for (const auto& choice : choices) EXPECT_TRUE(choice->ok());
  for (const auto& [of, loras] : works.loras) EXPECT_EQ(loras, only(4)) << of.first;
  EXPECT_EQ(works.loras.size(), 3U);
  EXPECT_LE(works.rows[ModelId(0)], static_cast<int64_t>(kPrompt.size()) + 3 * 5);
  box.expect_idle();
}

TEST(LoopLora, OneBatchMixesAdapters) {
  Box box{BoxOptions()};
  Works works(box);
  std::mt19937_64 rng(7);
  std::map<RequestId, LoraId> expected;
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < 33; ++i) {
    SequenceSpec s = box.spec(random_prompt(rng, 2, 6), 10);
    expected[s.id] = LoraId(i - 1);  // the first one has none
    recorders.push_back(box.submit(adapted(std::move(s), LoraId(i - 1))));
  }
  box.pump();
  for (const auto& r : recorders) EXPECT_TRUE(r->ok());
  for (const auto& [id, lora] : expected) {
    EXPECT_EQ(works.loras[(std::pair{id, ModelId(0)})], (std::set<LoraId>{lora}));
  }
  EXPECT_EQ(works.mixed, 33U);
  box.expect_idle();
}

TEST(LoopLora, RequestsAreCountedByAdapter) {
  BoxOptions o;
  o.limits.max_running = 1;
  Box box{o};
  const std::shared_ptr<AdapterSeries> opened = box.metrics.adapters.open("model", "adapter");
  AdapterSeries& series = *opened;
  const auto submit = [&] {
    SequenceSpec s = adapted(box.spec(kPrompt, 4), LoraId(0));
    s.adapter_series = &series;
    return box.submit(std::move(s));
  };
  const auto a = submit(), b = submit();
  const auto other = box.submit(box.spec(kPrompt, 4));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() == 1; }));
  EXPECT_EQ(series.requests_running.value(), 1);
  EXPECT_EQ(series.requests_waiting.value(), 1);
  box.pump();
  EXPECT_TRUE(a->ok() && b->ok() && other->ok());
  EXPECT_EQ(series.requests.value(), 2);
  EXPECT_EQ(series.requests_running.value(), 0);
  EXPECT_EQ(series.requests_waiting.value(), 0);
}

}  // namespace
}  // namespace tandem::test
