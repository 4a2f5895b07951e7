#include "engine/decode/ppd.h"

#include "tests/engine/decode/method_checks.h"
#include "tests/reference/autoregressive.h"

namespace tandem::test {
namespace {

using reference::Tokens;

struct Pipeline {
  int exit = 2;  // the early layer
  PpdParams params;
};

// Main on device 0; workers, which have main's first layers, on devices of their own.
BoxOptions devices_of(const FakeModelConfig& main, const Pipeline& p) {
  BoxOptions o;
  o.models.resize(static_cast<size_t>(1 + p.params.workers));
  o.models[0].config = main;
  for (int w = 1; w <= p.params.workers; ++w) {
    BoxModel& worker = o.models[static_cast<size_t>(w)];
    worker.config = main;
    worker.config.layers = main.layers - p.exit;
    worker.device = w;
    worker.pool.retains_top_hidden = true;
  }
  return o;
}

void use_pipeline(SequenceSpec& s, const Pipeline& p) {
  std::vector<CastRole> roles = {{Role::kLarge, ModelId(0), 0},
                                 {Role::kSmall, ModelId(0), p.exit, 2}};
  for (int w = 1; w <= p.params.workers; ++w) roles.push_back({Role::kWorker, ModelId(w), 0});
  s.cast = make_cast(std::move(roles));
  s.extra_rows = p.params.candidates;
  s.method = [a = p.params](Gen g) { return ppd(g, a); };
}

Pipeline random_pipeline(Rng& rng, int layers) {
  Pipeline p;
  p.exit = between(rng, (layers + 1) / 2, layers - 1);
  p.params.workers = between(rng, 1, 3);
  p.params.candidates = between(rng, 1, 6);
  return p;
}

// What Algorithm 1 counts when every worker is in time, said without caches.
struct Expected {
  Tokens tokens;
  int64_t rounds = 0, matches = 0, first = 0;
  bool last_matched = false;     // the token before the last
  std::vector<int64_t> by_rank;  // matches, but the last: the token that it is of is not emitted
};
Expected without_caches(const FakeModelConfig& main, const Pipeline& p, const SequenceSpec& s) {
  Expected e;
  e.tokens = reference::autoregressive(main, s.prompt, s.warp, s.stops.eos, s.stops.max_new_tokens);
  Tokens seq = s.prompt;
  for (int t = 0; t < s.stops.max_new_tokens; ++t) {
    const auto i = static_cast<size_t>(t);
    if (t + 1 < s.stops.max_new_tokens) {
      ++e.rounds;
      const reference::Row early(reference::Model(main, p.exit), seq,
                                 p.params.draft_vocabulary.value_or(0));
      const reference::Row top(reference::Model(main), seq);
      Tokens c;
      if (!s.warp.greedy()) c.push_back(early.draw(s.warp));
      std::vector<Token> ids(early.logits.size());
      for (size_t v = 0; v < ids.size(); ++v) ids[v] = static_cast<Token>(v);
      std::ranges::sort(ids, std::greater(),
                        [&](Token v) { return early.logits[static_cast<size_t>(v)]; });
      ids.resize(std::min(ids.size(), static_cast<size_t>(p.params.candidates)));
      for (const Token v : ids) {
        if (std::ranges::find(c, v) == c.end()) c.push_back(v);
      }
      c.resize(std::min(c.size(), static_cast<size_t>(p.params.candidates)));
      const auto right = std::ranges::find(c, top.draw(s.warp));
      e.last_matched = right != c.end();
      e.matches += e.last_matched;
      e.first += right == c.begin();
      const auto rank = static_cast<size_t>(right - c.begin());
      if (right != c.end() && i < e.tokens.size()) {
        if (e.by_rank.size() <= rank) e.by_rank.resize(rank + 1);
        ++e.by_rank[rank];
      }
    }
    if (i >= e.tokens.size()) break;  // an end token was drawn
    seq.push_back(e.tokens[i]);
  }
  return e;
}

// Random requests, some at once, over random layers, workers and memory (docs/reliability.md,
// oracles 1 and 7).
TEST(Ppd, GivesTheTokensOfAutoregressiveDecoding) {
  int64_t adopted = 0, late = 0, preempted = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    FakeModelConfig main = tiny_model(rng(), between(rng, 2, 7), between(rng, 3, 12));
    const Pipeline shared = random_pipeline(rng, main.layers);
    BoxOptions o = devices_of(main, shared);
    const bool tight = seed % 3 == 0, slow = seed % 4 == 1;
    for (size_t w = 1; w < o.models.size(); ++w) {
      if (slow) o.models[w].config.pass_seconds = 0.1;
      if (chance(rng, 20)) o.models[w].device = 0;  // no device queue of its own
    }
    if (tight) {
      for (BoxModel& m : o.models) m.pool = {4, 10, 10, m.pool.values, m.pool.retains_top_hidden};
    }
    o.shuffle = rng();
    o.limits.prefill_chunk_rows = between(rng, 1, 8);
    o.limits.step_rows = between(rng, 8, 30);
    Box box{o};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 6; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      all.emplace_back(nullptr, reference::autoregressive(main, s.prompt, s.warp, s.stops.eos,
                                                          s.stops.max_new_tokens));
      Pipeline p = shared;
      p.params.candidates = between(rng, 1, 6);
      if (i % 3 == 1) p.params.draft_vocabulary = 1 + static_cast<int>(seed % 12);
      if (!chance(rng, 20)) use_pipeline(s, p);
      all.back().first = box.submit(std::move(s));
    }
    box.pump();
    for (const auto& [r, tokens] : all) {
      ASSERT_TRUE(r->ok()) << seed << ": " << r->end.status;
      ASSERT_EQ(r->tokens, tokens) << seed;
      const auto& own = r->end.stats.own;
      adopted += own[PpdFigures::kAdopted];
      late += own[PpdFigures::kMatches] - own[PpdFigures::kAdopted];
      preempted += r->end.stats.preemptions;
    }
    box.expect_idle();
  }
  EXPECT_GT(adopted, 2000);
  EXPECT_GT(late, 300);
  EXPECT_GT(preempted, 100);
}

TEST(Ppd, SampledRequestsKeepTheirTokens) {
  Rng rng(7);
  const Pipeline p{3, {2, 1}};
  int64_t adopted = 0;
  for (int i = 0; i < 40; ++i) {
    FakeModelConfig main = tiny_model(rng(), 5, 8);
    Box box{devices_of(main, p)};
    for (int k = 0; k < 8; ++k) {
      SequenceSpec s = random_spec(box, rng, /*greedy=*/false);
      s.warp.processors = random_processors(rng, 8, static_cast<int>(s.prompt.size()));
      SequenceSpec ar = box.spec(s.prompt, s.stops.max_new_tokens);
      ar.warp = s.warp;
      ar.stops.eos = s.stops.eos;
      use_pipeline(s, p);
      const auto r = box.submit(std::move(s)), plain = box.submit(std::move(ar));
      box.pump();
      ASSERT_TRUE(r->ok() && plain->ok());
      ASSERT_EQ(r->tokens, plain->tokens);
      adopted += r->end.stats.own[PpdFigures::kAdopted];
    }
  }
  EXPECT_GT(adopted, 200);
}

// Latency and compute as in the paper's section 4: with l tokens, of which a fraction p of the
// l - 1 later ones was matched, d l - (d - e)(l - 1) p layers one after the other, and workers'
// k (d - e)(l - 1) layers beside them.
TEST(Ppd, TakesTheTimeOfTheTheorem) {
  int64_t matches = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    FakeModelConfig main = tiny_model(rng(), between(rng, 2, 8), between(rng, 3, 8));
    main.pass_seconds = main.row_seconds = 0;
    main.layer_seconds = 0.001;
    Pipeline p = random_pipeline(rng, main.layers);
    p.params.workers = p.params.candidates;  // Algorithm 1: a compute unit for each candidate
    p.params.candidates = p.params.workers = std::min(p.params.candidates, main.vocab_size);
    if (seed % 3 == 0) p.params.draft_vocabulary = std::max(p.params.candidates, 3);
    Box box{devices_of(main, p)};
    SequenceSpec s = box.spec({1}, 12);
    s.prefix_cache = false;
    use_pipeline(s, p);
    const Expected e = without_caches(main, p, s);
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    ASSERT_EQ(r->tokens, e.tokens);
    const auto& own = r->end.stats.own;
    EXPECT_EQ(own[PpdFigures::kRounds], 11);
    EXPECT_EQ(own[PpdFigures::kMatches], e.matches);
    EXPECT_EQ(own[PpdFigures::kFirstMatches], e.first);
    EXPECT_EQ(own[PpdFigures::kAdopted], e.matches) << "a worker is as fast as main's upper layers";
    const int d = main.layers, lower = d - p.exit;
    const int64_t layers = d * 12 - lower * e.matches;
    EXPECT_EQ(own[PpdFigures::kMainLayers], layers);
    EXPECT_EQ(own[PpdFigures::kPredictedMainLayers], layers);
    EXPECT_EQ(r->end.stats.tokens_by_index, e.by_rank);
    EXPECT_EQ(own[PpdFigures::kWorkerLayers], p.params.candidates * lower * 11);
    EXPECT_NEAR(seconds(box.clock.now().time_since_epoch()), 0.001 * static_cast<double>(layers),
                1e-9)
        << "d " << d << ", e " << p.exit << ", k " << p.params.candidates;
    // By phase, from the first token on: below the early layer and above it. The last token starts
    // no workers, so that nothing reads the early layer for it. A worker's layers are as many as
    // main's upper ones, so no pass waits.
    const auto of_layers = [](int64_t n) { return static_cast<double>(n) * 1e6; };
    const int64_t upper = lower * 10 + d - (e.last_matched ? lower : 0);
    EXPECT_NEAR(static_cast<double>(own[PpdFigures::kUpperTime]), of_layers(upper), 10);
    EXPECT_NEAR(static_cast<double>(own[PpdFigures::kLowerTime]), of_layers(layers - d - upper),
                10);
    EXPECT_EQ(own[PpdFigures::kBarrierTime], 0);
    EXPECT_NEAR(static_cast<double>(own[PpdFigures::kWorkerTime]),
                of_layers(own[PpdFigures::kWorkerLayers]), 100);
    EXPECT_NEAR(r->end.stats.decode_seconds, 0.001 * static_cast<double>(layers - d), 1e-9);
    matches += e.matches;
  }
  EXPECT_GT(matches, 100);
}

// A worker that takes half as long again as main's upper layers is waited for where it was right.
TEST(Ppd, ReportsTheTimeSpentWaitingForWorkers) {
  const Pipeline p{2, {1, 1}};
  FakeModelConfig main = tiny_model(3, 4, 3);
  main.pass_seconds = main.row_seconds = 0;
  main.layer_seconds = 0.001;
  BoxOptions o = devices_of(main, p);
  o.models[1].config.layer_seconds = 0.0015;
  Box box{o};
  SequenceSpec s = box.spec({1}, 40);
  s.prefix_cache = false;
  use_pipeline(s, p);
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok());
  const auto& own = r->end.stats.own;
  EXPECT_GT(own[PpdFigures::kAdopted], 5);
  EXPECT_GE(own[PpdFigures::kBarrierTime], own[PpdFigures::kAdopted] * 1'000'000);
  EXPECT_NEAR(static_cast<double>(own[PpdFigures::kLowerTime] + own[PpdFigures::kUpperTime] +
                                  own[PpdFigures::kBarrierTime]),
              1e9 * r->end.stats.decode_seconds, 10);
}

// Ids from there on are never proposed, whatever the early layer makes of them.
TEST(Ppd, CandidatesAreOfTheDraftVocabulary) {
  Pipeline p{2, {3, 2}};
  p.params.draft_vocabulary = 4;
  Box box{devices_of(tiny_model(1, 4, 12), p)};
  int64_t proposed = 0, others = 0;
  for (Token t = 0; t < 12; ++t) {
    SequenceSpec s = box.spec({t, 2, 0}, 20);
    use_pipeline(s, p);
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    EXPECT_EQ(r->tokens, box.greedy({t, 2, 0}, 20));
    for (const Emitted& e : r->emitted) {
      if (e.provenance.proposed == Source::kEarlyHead) {
        EXPECT_LT(e.token, 4);
        ++proposed;
      } else {
        others += e.token >= 4;
      }
    }
  }
  EXPECT_GT(proposed, 5);
  EXPECT_GT(others, 20);
}

TEST(Ppd, StopsWhereAutoregressiveDecodingStops) {
  for (const int exit : {2, 3}) {
    const Pipeline p{exit, {3, 2}};
    expect_stops_where_ar_does(devices_of(tiny_model(1, 4, 6), p),
                               [&p](SequenceSpec& s) { use_pipeline(s, p); });
  }
}

TEST(Ppd, ReportsLogprobsOfMain) {
  const Pipeline p{2, {3, 2}};
  Box box{devices_of(tiny_model(1, 4, 6), p)};
  SequenceSpec s = box.spec({1, 2, 0}, 16);
  use_pipeline(s, p);
  const auto r = expect_logprobs_of_large(box, std::move(s));
  const auto proposed = std::ranges::count_if(
      r->emitted, [](const Emitted& e) { return e.provenance.proposed == Source::kEarlyHead; });
  EXPECT_EQ(proposed, r->end.stats.own[PpdFigures::kMatches]);
  EXPECT_GT(proposed, 0);
}

// When a request of main's device alone is over, beside one that decodes with a worker.
TimePoint end_of_other(double worker_seconds, int64_t* adopted, int64_t* layers_lost) {
  const Pipeline p{2, {1, 1}};
  FakeModelConfig main = tiny_model(3, 4, 3);
  BoxOptions o = devices_of(main, p);
  o.models[1].config.pass_seconds = worker_seconds;
  Box box{o};
  SequenceSpec s = box.spec({1, 2, 0}, 60);
  use_pipeline(s, p);
  const auto a = box.submit(std::move(s));
  const auto b = box.submit(box.spec({2, 0, 1}, 40));
  EXPECT_TRUE(box.pump_until([&] { return b->ends > 0; }));
  const TimePoint end = box.clock.now();
  box.pump();
  EXPECT_TRUE(a->ok() && b->ok());
  EXPECT_EQ(a->tokens, box.greedy({1, 2, 0}, 60));
  const auto& own = a->end.stats.own;
  *adopted = own[PpdFigures::kAdopted];
  *layers_lost = own[PpdFigures::kMainLayers] - own[PpdFigures::kPredictedMainLayers];
  EXPECT_EQ(*layers_lost, 2 * (own[PpdFigures::kMatches] - *adopted));
  return end;
}

TEST(Ppd, ASlowWorkerIsNotWaitedFor) {
  int64_t fast = 0, slow = 0, fast_lost = 0, slow_lost = 0;
  const TimePoint with_fast = end_of_other(0.0005, &fast, &fast_lost),
                  with_slow = end_of_other(0.1, &slow, &slow_lost);
  EXPECT_GT(fast, 10);
  EXPECT_EQ(fast_lost, 0) << "as Theorem 4.1 says";
  EXPECT_LE(slow, 1) << "before anybody knew";
  EXPECT_LE(with_slow, with_fast) << "it has main more for itself";
}

// A hundred times slower, the worker is seldom asked, and beside it the other request ends when it
// would beside autoregressive decoding: but for the early layer of the rounds that did ask.
TEST(Ppd, ASlowWorkerCostsOthersNothing) {
  const auto end_of_other = [](bool by_ar, int64_t* rounds) {
    const Pipeline p{2, {1, 1}};
    FakeModelConfig main = tiny_model(3, 4, 3);
    BoxOptions o = devices_of(main, p);
    o.models[1].config.pass_seconds = 100 * main.pass_seconds;
    Box box{o};
    SequenceSpec s = box.spec({1, 2, 0}, 150);
    if (!by_ar) use_pipeline(s, p);
    const auto a = box.submit(std::move(s));
    const auto b = box.submit(box.spec({2, 0, 1}, 100));
    EXPECT_TRUE(box.pump_until([&] { return b->ends > 0; }));
    const TimePoint end = box.clock.now();
    box.pump();
    EXPECT_TRUE(a->ok() && b->ok());
    *rounds = a->end.stats.own[PpdFigures::kRounds];
    return end;
  };
  int64_t rounds = 0, none = 0;
  const TimePoint by_ppd = end_of_other(false, &rounds), by_ar = end_of_other(true, &none);
  EXPECT_EQ(none, 0);
  EXPECT_GE(rounds, 1);
  EXPECT_LE(rounds, 4) << "of 149: once in the time of its pass";
  const FakeModelConfig main = tiny_model();
  const double pass = main.pass_seconds + 2 * main.row_seconds;
  EXPECT_LE(seconds(by_ppd - by_ar), static_cast<double>(2 * rounds) * pass);
}

// Another model decodes on the worker's device: everybody's tokens are their own, and workers are
// still in time now and then.
TEST(Ppd, AWorkersDeviceServesOthersToo) {
  const Pipeline p{2, {2, 1}};
  BoxOptions o = devices_of(tiny_model(1, 4, 6), p);
  o.models.push_back({tiny_model(5, 3, 6)});
  o.models.back().device = 1;
  Box box{o};
  std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
  int64_t adopted = 0;
  for (Token t = 0; t < 4; ++t) {
    const Tokens prompt = {t, 2, 0};
    SequenceSpec s = box.spec(prompt, 30), other = box.spec(prompt, 30);
    use_pipeline(s, p);
    other.cast = make_cast({{Role::kLarge, ModelId(2), 0}});
    all.emplace_back(box.submit(std::move(s)), box.greedy(prompt, 30));
    all.emplace_back(box.submit(std::move(other)), box.greedy(prompt, 30, 2));
  }
  box.pump();
  for (const auto& [r, tokens] : all) {
    ASSERT_TRUE(r->ok()) << r->end.status;
    EXPECT_EQ(r->tokens, tokens);
    adopted += r->end.stats.own[PpdFigures::kAdopted];
  }
  EXPECT_GT(adopted, 8);
  box.expect_idle();
}

TEST(Ppd, ALostWorkerEndsItsRequestsAndNoOthers) {
  const Pipeline p{2, {2, 2}};
  BoxOptions o = devices_of(tiny_model(1, 4, 6), p);
  Box box{o};
  int batches = 0;
  box.backends[2].set_faults([&](const Batch&) {
    return ++batches == 5 ? Fault{absl::UnavailableError("gone"), {}, {}} : Fault();
  });
  SequenceSpec s = box.spec({1, 2, 0}, 40);
  use_pipeline(s, p);
  const auto a = box.submit(std::move(s));
  const auto b = box.submit(box.spec({2, 0, 1}, 40));
  box.pump();
  EXPECT_EQ(a->ends, 1);
  EXPECT_TRUE(absl::IsUnavailable(a->end.status)) << a->end.status;
  EXPECT_TRUE(b->ok());
  EXPECT_EQ(b->tokens, box.greedy({2, 0, 1}, 40));
  EXPECT_EQ(box.used_pages(), 0);
}

}  // namespace
}  // namespace tandem::test
