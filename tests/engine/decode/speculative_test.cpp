#include "tests/reference/speculative.h"

#include "engine/decode/draft_pass.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "tests/engine/decode/method_checks.h"
#include "tests/engine/decode/random_constraint.h"
#include "tests/reference/autoregressive.h"
#include "tests/sanitized.h"

namespace tandem::test {
namespace {

using reference::Drafting;
using reference::Tokens;
using Acceptance = SpeculativeParams::Acceptance;

// Of both methods that judge drafts: with a small model, and with n-grams.
Drafting random_drafting(Rng& rng) {
  Drafting a;
  if (chance(rng, 25)) a.max_ngram = between(rng, 1, kMaxNgram);
  a.draft_tokens = between(rng, 1, 7);
  if (chance(rng, 40)) a.pace = Pace::kAdaptive;
  if (chance(rng, 40)) a.min_draft_probability = fraction(rng);
  if (chance(rng, 40)) a.acceptance = Acceptance::kRatio;
  if (chance(rng, 40)) a.draft_vocabulary = between(rng, 1, 12);
  a.drafts_text_ids = chance(rng, 75);
  a.by_adapter = kAdapter;
  if (chance(rng, 40)) a.num_masks = between(rng, 0, 2);  // whose rows a tight box has room for
  return a;
}

// The same without a fixed number of drafts: pacing chooses it.
Drafting random_or_paying(Rng& rng) {
  Drafting a = random_drafting(rng);
  if (chance(rng, 50)) a.pace = Pace::kFastest;
  if (chance(rng, 50)) a.draft_context = between(rng, 1, 6);
  return a;
}

void use_drafting(SequenceSpec& s, const Drafting& a) {
  s.cast = make_cast(two_models());
  s.method = [p = SpeculativeParams(a)](Gen g) { return speculative(g, p); };
  if (a.num_masks.value_or(0) > 0) {
    edit_cast(s).roles[1].mask_adapter = a.by_adapter;
    s.extra_rows = parallel_draft_rows(*a.num_masks);
  }
  if (!a.by_lookup()) return;
  s.extra_rows = 0;
  s.cast = make_cast({two_models().front()});
  s.method = [p = a.ngram()](Gen g) { return ngram(g, p); };
}

// Masks are right now and then, sometimes never or always.
BoxOptions random_drafters(Rng& rng, bool tight = false) {
  BoxOptions o = random_pair(rng, tight);
  o.models[1].config.mask_accuracy = chance(rng, 20) ? 0 : chance(rng, 20) ? 1 : fraction(rng);
  return o;
}

struct DraftsSeen {
  int64_t accepted = 0, preempted = 0;
  int64_t masked = 0, spared = 0;  // drafts of requests with masks, and those beyond their passes
};

// Tokens and statistics; where it is exact, autoregressive decoding's tokens.
struct DraftsCase {
  DraftsCase(const BoxOptions& o, DraftsSeen* s) : box(o), seen(s) {}

  reference::Speculated ask(SequenceSpec& s, Rng& rng) const {
    const Drafting a = random_drafting(rng);
    use_drafting(s, a);
    reference::Speculated expected =
        reference::speculative(reference::Model(box.config(0)), reference::Model(box.config(1)),
                               s.prompt, s.warp, a, s.stops.eos, s.stops.max_new_tokens);
    if (a.by_lookup() || speculative_is_exact(a, s.warp.greedy())) {
      EXPECT_EQ(expected.tokens, reference::autoregressive(box.config(), s.prompt, s.warp,
                                                           s.stops.eos, s.stops.max_new_tokens));
    }
    return expected;
  }
  void compare(const Recorder& r, const reference::Speculated& expected) const {
    const MethodStats& got = r.end.stats;
    EXPECT_EQ(got.accept_lengths, expected.stats.accept_lengths);
    EXPECT_EQ(got.draft_tokens, expected.stats.draft_tokens);
    for (size_t n = 1; n < got.accept_lengths.size(); ++n) {
      seen->accepted += static_cast<int64_t>(n) * got.accept_lengths[n];
    }
    seen->preempted += got.preemptions;
    if (expected.draft_passes == 0) return;
    seen->masked += got.draft_tokens;
    seen->spared += got.draft_tokens - expected.draft_passes;
  }

  Box box;
  DraftsSeen* seen;
};

DraftsSeen drafting_against_the_reference(uint64_t first_seed, int boxes, bool tight) {
  DraftsSeen seen;
  expect_equals_reference(first_seed, boxes, [&](Rng& rng) {
    return std::make_unique<DraftsCase>(random_drafters(rng, tight), &seen);
  });
  return seen;
}

TEST(Speculative, EqualsTheReference) {
  const DraftsSeen seen = drafting_against_the_reference(0, 400, /*tight=*/false);
  EXPECT_GT(seen.accepted, cases(2000));
  EXPECT_GT(seen.masked, cases(500));
  EXPECT_GT(seen.spared, cases(100));
}

TEST(Speculative, EvictionsChangeNothing) {
  const DraftsSeen seen = drafting_against_the_reference(10000, 200, /*tight=*/true);
  EXPECT_GT(seen.accepted, cases(1000));
  EXPECT_GT(seen.preempted, cases(200));
}

// docs/reliability.md, oracle 4, and the papers' own sanity check: p == q accepts whatever is
// drawn.
TEST(Speculative, AModelAcceptsAllOfItsOwnDrafts) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    BoxOptions o = random_pair(rng);
    o.models[1].config = o.models[0].config;
    Box box{o};
    SequenceSpec s = box.spec({1, 2, 0}, 13);
    s.warp = random_warp(rng, chance(rng, 30));
    Drafting a;
    a.draft_tokens = 3;
    if (seed % 2) a.acceptance = Acceptance::kRatio;
    use_drafting(s, a);
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    EXPECT_EQ(r->end.stats.accept_lengths, (std::vector<int64_t>{0, 0, 0, 3}));
    EXPECT_EQ(r->end.stats.large_passes, 4) << "the first token, and 3 times 3 drafts + 1";
    EXPECT_EQ(r->end.stats.small_passes, 1 + 9);
    for (size_t i = 0; i < r->emitted.size(); ++i) {
      const bool of_target = i % 4 == 0;
      EXPECT_EQ(r->emitted[i].provenance.proposed, of_target ? Source::kLarge : Source::kSmall);
      EXPECT_EQ(r->emitted[i].provenance.confirmed, Source::kLarge);
    }
  }
}

TEST(Speculative, StopsWhereAutoregressiveDecodingStops) {
  for (const bool same : {true, false}) {
    for (const int max_ngram : {0, 3}) {
      for (const float least : {0.0F, 0.2F}) {
        BoxOptions o;
        o.models.resize(2);
        o.models[0].config = tiny_model(1, 4, 12);
        o.models[1].config = same ? o.models[0].config : tiny_model(2, 2, 12);
        Drafting a;
        a.max_ngram = max_ngram;
        a.draft_tokens = 5;
        a.min_draft_probability = least;
        expect_stops_where_ar_does(o, [&](SequenceSpec& s) { use_drafting(s, a); });
        a.pace = Pace::kFastest;
        expect_stops_where_ar_does(o, [&](SequenceSpec& s) { use_drafting(s, a); });
        a.num_masks = 2;
        expect_stops_where_ar_does(o, [&](SequenceSpec& s) { use_drafting(s, a); });
        a.pace = Pace::kFixed;
        expect_stops_where_ar_does(o, [&](SequenceSpec& s) { use_drafting(s, a); });
      }
    }
  }
}

// Both models agree. Beyond the draft vocabulary, ids of the text are drafted, and only these: by
// chains, by masks, sampled under either rule.
TEST(Speculative, DraftsIdsOfTheText) {
  int64_t beyond = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    Rng rng(seed);
    BoxOptions o = random_pair(rng);
    o.models[0].config.vocab_size = 12;
    o.models[1].config = o.models[0].config;
    o.models[1].config.mask_accuracy = 1;
    Box box{o};
    Drafting a;
    a.draft_vocabulary = between(rng, 1, 6);
    a.by_adapter = kAdapter;
    a.num_masks = between(rng, 0, 1);
    if (chance(rng, 50)) a.acceptance = Acceptance::kRatio;
    const bool of_text = chance(rng, 70);
    a.drafts_text_ids = of_text;
    SequenceSpec s = box.spec({1, 2, 0, 11}, 40);
    s.warp = random_warp(rng, chance(rng, 50));
    s.warp.vocab = 12;
    use_drafting(s, a);
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    Tokens text = {1, 2, 0, 11};
    for (const Emitted& e : r->emitted) {
      if (e.provenance.proposed != Source::kLarge && e.token >= *a.draft_vocabulary) {
        ASSERT_TRUE(of_text);
        ASSERT_NE(std::ranges::find(text, e.token), text.end()) << seed;
        ++beyond;
      }
      text.push_back(e.token);
    }
  }
  EXPECT_GT(beyond, 300);
}

// The tokens that autoregressive decoding draws under the same seed, with penalties, whatever
// drafts and however long.
TEST(Speculative, SampledTokensAreAutoregressiveDecodings) {
  int64_t accepted = 0;
  const auto use_exact = [](SequenceSpec& s, Rng& rng) {
    Drafting a = random_or_paying(rng);
    a.acceptance = Acceptance::kMatch;
    use_drafting(s, a);
  };
  expect_the_tokens_of_ar(1000, use_exact,
                          [&](const MethodStats& stats) { accepted += stats.small_tokens; });
  EXPECT_GT(accepted, 600);
}

// Under the ratio rule they are others, or the test above would say nothing.
TEST(Speculative, TheRatioRuleGivesOtherTokens) {
  int different = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng)};
    SequenceSpec s = random_spec(box, rng, /*greedy=*/false);
    SequenceSpec ar = box.spec(s.prompt, s.stops.max_new_tokens);
    ar.warp = s.warp;
    ar.stops.eos = s.stops.eos;
    Drafting a = random_drafting(rng);
    a.acceptance = Acceptance::kRatio;
    a.max_ngram = 0;
    use_drafting(s, a);
    const auto r = box.submit(std::move(s));
    const auto by_ar = box.submit(std::move(ar));
    box.pump();
    different += r->tokens != by_ar->tokens;
  }
  EXPECT_GT(different, 15);
}

// Drafts that are drawn independently of the target's tokens match less often.
TEST(Speculative, IndependentDraftsAreDetected) {
  int64_t kept = 0, kept_independent = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    const FakeModelConfig config = tiny_model(rng(), 3, 12);
    const reference::Model model(config);
    Warp w;
    w.temperature = 2;
    w.seed = seed;
    for (const bool independent : {false, true}) {
      const auto r = reference::speculative(model, model, {1, 2}, w, {}, {}, 15, independent);
      EXPECT_EQ(r.tokens, reference::autoregressive(config, {1, 2}, w, {}, 15));
      for (size_t n = 0; n < r.stats.accept_lengths.size(); ++n) {
        (independent ? kept_independent : kept) +=
            static_cast<int64_t>(n) * r.stats.accept_lengths[n];
      }
    }
  }
  EXPECT_GT(kept, 2 * kept_independent);
}

// The end comes with the second of eight drafts, on which both models agree: it is no token of the
// output, and what they agreed on behind it is not counted.
TEST(Speculative, DraftsBehindTheEndAreNotCountedAsAccepted) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].config = o.models[1].config = tiny_model(1, 3, 40);
  Box box{o};
  const Tokens text = box.greedy({3, 1, 2}, 16);
  size_t place = 2;
  while (std::find(text.begin(), text.begin() + static_cast<ptrdiff_t>(place), text[place]) !=
         text.begin() + static_cast<ptrdiff_t>(place)) {
    ++place;  // its first time
  }
  Drafting a;
  a.draft_tokens = 12;
  SequenceSpec s = box.spec({3, 1, 2}, 16);
  s.stops.eos = {text[place]};
  use_drafting(s, a);
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok());
  EXPECT_EQ(r->tokens.size(), place);
  std::vector<int64_t> once(place);  // all but the first token, which is the target's own
  once.back() = 1;
  EXPECT_EQ(r->end.stats.accept_lengths, once);
  EXPECT_EQ(r->end.stats.draft_tokens, 12);
}

// Both models agree, and all predictions of masks are right: the small model's passes give two
// tokens each but the first of a round, and the last one leaves a guess for the large model to
// judge.
TEST(Speculative, MasksPredictWhatIsDrafted) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].config = o.models[1].config = tiny_model(1, 4, 12);
  o.models[1].config.mask_accuracy = 1;
  Box box{o};
  Drafting a;
  a.draft_tokens = 6;
  a.by_adapter = kAdapter;
  a.num_masks = 1;
  SequenceSpec s = box.spec({1, 2, 0}, 22);
  use_drafting(s, a);
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(r->tokens, box.greedy({1, 2, 0}, 22));
  EXPECT_EQ(r->end.stats.accept_lengths, (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 3}));
  EXPECT_EQ(r->end.stats.large_passes, 1 + 3);
  EXPECT_EQ(r->end.stats.small_passes, 1 + 3 * 3) << "1, 2, 2 and a guess";
  EXPECT_EQ(r->end.stats.tokens_by_index, std::vector<int64_t>{3}) << "guesses";
}

// Guesses have no distribution that the ratio rule could be applied to.
TEST(Speculative, TheRatioRuleHasNoUseForMasks) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<Token> tokens[2];
    int64_t passes[2];
    for (const int masks : {0, 1}) {
      Rng rng(seed);
      Box box{random_drafters(rng)};
      SequenceSpec s = random_spec(box, rng, /*greedy=*/false);
      Drafting a;
      a.acceptance = Acceptance::kRatio;
      a.by_adapter = kAdapter;
      a.num_masks = masks;
      use_drafting(s, a);
      const auto r = box.submit(std::move(s));
      box.pump();
      ASSERT_TRUE(r->ok()) << r->end.status;
      tokens[masks] = r->tokens;
      passes[masks] = r->end.stats.small_passes;
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    EXPECT_EQ(passes[0], passes[1]);
  }
}

// Rejections, full acceptances and rounds without drafts leave caches alike.
TEST(Speculative, CachesHoldFinalTokensOnly) {
  EXPECT_GT(expect_final_rows_only(
                150, [](SequenceSpec& s, Rng& rng) { use_drafting(s, random_or_paying(rng)); }),
            10000);
}

TEST(Speculative, NeverDraftsBeyondTheLastToken) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = o.models[0].config;
  // Exactly what prompt and output need: one row more and the request would have no pages.
  for (BoxModel& m : o.models) m.pool = {4, 4, 4};
  Box box{o};
  Drafting a;
  a.draft_tokens = 100;
  SequenceSpec s = box.spec({1, 2, 3, 4}, 12);
  use_drafting(s, a);
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(r->tokens.size(), 12U);
  EXPECT_EQ(r->end.stats.draft_tokens, 10);
  EXPECT_EQ(r->end.stats.large_passes, 2);

  SequenceSpec one = box.spec({1, 2, 3, 4}, 1);
  use_drafting(one, a);
  const auto first = box.submit(std::move(one));
  box.pump();
  EXPECT_EQ(first->end.stats.small_passes, 0) << "one token needs no draft model";
}

// On a device of its own the small model still reads a long prompt when copies of the text are
// judged and rows of the caches are cut.
TEST(Speculative, DoesNotWaitForASmallModelThatReadsThePrompt) {
  int64_t unasked = 0;  // answers of requests that had the prompt read and no draft made of it
  for (uint64_t seed = 0; seed < 20; ++seed) {
    BoxOptions o;
    o.models.resize(2);
    o.models[0].config = o.models[1].config = tiny_model(seed, 4, 2);
    o.models[1].device = 1;
    o.models[1].prefix_cache = false;
    o.models[1].config.pass_seconds = 0;
    o.models[1].config.row_seconds = o.models[0].config.pass_seconds / 3;
    Box box{o};
    SpeculativeParams a;
    a.pace = Pace::kFastest;
    a.stats = std::make_shared<AcceptanceStats>();
    for (int i = 0; i < 20; ++i) {
      SequenceSpec s = box.spec({}, 20);
      for (int row = 0; row < 60; ++row) s.prompt.push_back((row * row + i) % 3 % 2);
      const Tokens expected = reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                                        s.stops.max_new_tokens);
      s.cast = make_cast(two_models());
      s.method = [a](Gen g) { return speculative(g, a); };
      const auto r = box.submit(std::move(s));
      box.pump();
      ASSERT_TRUE(r->ok()) << r->end.status;
      EXPECT_EQ(r->tokens, expected);
      unasked += r->end.stats.small_passes == 1;
    }
    box.expect_idle();
  }
  EXPECT_GT(unasked, 0);
}

// The pass that reads the last row of a cached prompt verifies drafts.
TEST(Speculative, DraftsComeFirstWhereThePromptIsCached) {
  for (const Pace pace : {Pace::kFastest, Pace::kFixed}) {
    BoxOptions o;
    o.models.resize(2);
    o.models[0].config = o.models[1].config = tiny_model(1, 4, 12);
    o.models[0].config.pass_seconds = 1;
    o.models[1].config.pass_seconds = 0.01;
    Box box{o};
    std::vector<int> rows;  // of the large model, by pass
    box.backends[0].set_on_run([&](const Batch& batch) {
      for (const Work& w : batch.works) {
        if (w.model == ModelId(0)) rows.push_back(w.count);
      }
    });
    Drafting a;
    a.pace = pace;
    a.draft_tokens = 4;
    const auto ask = [&] {
      rows.clear();
      SequenceSpec s = box.spec({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 3, 5, 7, 9, 11, 2, 4}, 11);
      use_drafting(s, a);
      const auto r = box.submit(std::move(s));
      box.pump();
      EXPECT_TRUE(r->ok()) << r->end.status;
      return r;
    };
    const auto first = ask();
    EXPECT_EQ(rows.front(), 19);
    const auto again = ask();
    EXPECT_EQ(again->tokens, first->tokens);
    EXPECT_EQ(again->end.stats.cached_tokens, 18);
    EXPECT_EQ(rows.front() > 1, pace == Pace::kFastest) << rows.front();
  }
}

// Of a text of 60 tokens the small model reads the last 8, and the last one; all of it for
// penalties, whose counts are those of the whole text, and where most of it is in the prefix cache.
TEST(Speculative, TheSmallModelReadsTheEndOfALongText) {
  enum class Case : uint8_t { kLong, kConstrained, kCached };
  constexpr int kPrompt = 60;
  for (const Case c : {Case::kLong, Case::kConstrained, Case::kCached}) {
    BoxOptions o;
    o.models.resize(2);
    o.models[0].config = o.models[1].config = tiny_model(1, 4, 12);
    Box box{o};
    int rows = 0;  // of the small model
    box.backends[0].set_on_run([&](const Batch& batch) {
      for (const Work& w : batch.works) {
        if (w.model == ModelId(0)) continue;
        rows += w.count;
        for (const Read& read : w.pass->read) {
          if (const auto& p = read.warp.processors) {
            EXPECT_EQ(w.pass->stage.first + p->prompt_tokens, kPrompt);
          }
        }
      }
    });
    const auto ask = [&](Pace pace, int tokens) {
      SequenceSpec s = box.spec(std::vector<Token>(kPrompt, 1), tokens);
      s.warp.temperature = 1;
      if (c == Case::kConstrained) {
        Processors processors;
        processors.prompt_tokens = kPrompt;
        processors.repetition_penalty = 1.2F;
        processors.constraint =
            std::make_shared<RandomConstraint>(AutomatonShape{3, 12, {}, false});
        s.warp.processors = std::make_shared<const Processors>(processors);
      }
      const Tokens expected = reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                                        s.stops.max_new_tokens);
      SpeculativeParams a;
      a.pace = pace;
      a.draft_context = 8;
      s.cast = make_cast(two_models());
      s.method = [a](Gen g) { return speculative(g, a); };
      rows = 0;
      const auto r = box.submit(std::move(s));
      box.pump();
      EXPECT_TRUE(r->ok()) << r->end.status;
      EXPECT_EQ(r->tokens, expected);
    };
    ask(c == Case::kCached ? Pace::kFixed : Pace::kFastest, 2);
    ask(Pace::kFastest, 12);
    EXPECT_GT(rows, 8);
    EXPECT_LT(rows, kPrompt) << static_cast<int>(c);
    box.expect_idle();
  }
}

// gamma follows what is accepted, up and down.
TEST(Speculative, AdaptsToTheAcceptLength) {
  for (const bool same : {true, false}) {
    BoxOptions o;
    o.models.resize(2);
    o.models[0].config = tiny_model(1, 4, 200);
    o.models[1].config = same ? o.models[0].config : tiny_model(2, 2, 200);
    Box box{o};
    Drafting a;
    a.draft_tokens = 8;
    a.pace = Pace::kAdaptive;
    SequenceSpec s = box.spec({1, 2, 3}, 100);
    use_drafting(s, a);
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    const MethodStats& stats = r->end.stats;
    if (same) {
      EXPECT_EQ(stats.large_passes, 1 + 11) << "nine tokens each";
    } else {
      // Next to nothing is accepted: 8 drafts at first, soon 1 each.
      EXPECT_GT(stats.accept_lengths[0], 90);
      EXPECT_LT(stats.draft_tokens, stats.large_passes + 30);
    }
  }
}

// A pair on one device: what small drafts is always kept, or next to never.
struct Costs {
  const char* name;
  bool kept;
  double large_row, small_pass, small_row;  // a pass of large takes 1, and this for each row
};

// Seconds of `streams` equal requests for 400 tokens at once, drafted as `a` says or not at all.
double seconds_of(const Costs& costs, int streams, const Drafting* a) {
  constexpr int kTokens = 400;
  BoxOptions o;
  o.models.resize(2);
  o.models[0].config = tiny_model(1, 4, 200);
  o.models[1].config = costs.kept ? o.models[0].config : tiny_model(2, 2, 200);
  for (BoxModel& m : o.models) m.pool = {16, 800, 80};
  for (BoxModel& m : o.models) m.config.max_positions = 1000;
  o.models[0].config.pass_seconds = 1;
  o.models[0].config.row_seconds = costs.large_row;
  o.models[1].config.pass_seconds = costs.small_pass;
  o.models[1].config.row_seconds = costs.small_row;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < streams; ++i) {
    SequenceSpec s = box.spec({i, 2, 3}, kTokens);
    if (a) use_drafting(s, *a);
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  for (const auto& r : all) EXPECT_TRUE(r->ok()) << r->end.status;
  return seconds(box.clock.now() - TimePoint{});
}

// One request and several: as fast as the better of never drafting and always drafting, but for
// what it takes to see which that is.
TEST(Speculative, AsManyDraftsAsPay) {
  const Costs all[] = {
      {"kept, rows for nothing", true, 0.02, 0.2, 0.01},
      {"kept, small model slow", true, 0.02, 1.5, 0.01},
      {"kept, rows dear", true, 0.9, 0.3, 0.1},
      {"never kept", false, 0.1, 0.2, 0.02},
      {"never kept, rows dear", false, 0.9, 0.3, 0.1},
  };
  Drafting drafts;
  drafts.draft_tokens = 8;
  for (const Costs& costs : all) {
    for (const int streams : {1, 8}) {
      Drafting paying = drafts;
      paying.pace = Pace::kFastest;
      paying.stats = std::make_shared<AcceptanceStats>();
      const double never = seconds_of(costs, streams, nullptr);
      const double always = seconds_of(costs, streams, &drafts);
      const double best = std::min(never, always);
      EXPECT_LT(seconds_of(costs, streams, &paying), best / (streams == 1 ? 0.83 : 0.9))
          << costs.name << ", streams " << streams << ": never " << never << ", always " << always;
      // Later requests know what pays.
      EXPECT_LT(seconds_of(costs, streams, &paying), best / (streams == 1 ? 0.95 : 0.9))
          << costs.name << ", streams " << streams << ": never " << never << ", always " << always;
    }
  }
}

TEST(Speculative, LogProbabilitiesAreTheTargets) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng)};
    SequenceSpec s = random_spec(box, rng, chance(rng, 50));
    use_drafting(s, random_or_paying(rng));
    expect_logprobs_of_large(box, std::move(s));
  }
}

// --- docs/reliability.md, oracle 7: the joint distribution of the first three tokens, by the ratio
// rule (and of n-grams, which need none).

struct Setting {
  const char* name;
  Drafting params;
  Warp warp;
};

std::vector<Setting> settings() {
  std::vector<Setting> all(4);
  for (Setting& s : all) s.params.acceptance = Acceptance::kRatio;
  all[0].name = "chained drafts";
  all[0].params.draft_tokens = 3;
  all[0].warp.temperature = 1.3F;
  all[1].name = "confident drafts, adaptive, nucleus";
  all[1].params.min_draft_probability = 0.55F;
  all[1].params.pace = Pace::kAdaptive;
  all[1].warp.temperature = 2;
  all[1].warp.top_p = 0.85F;
  all[2].name = "n-gram drafts";
  all[2].params.max_ngram = 3;
  all[2].warp.temperature = 2.5F;
  all[3].name = "top_k, min_p";
  all[3].params.draft_tokens = 2;
  all[3].warp.temperature = 3;
  all[3].warp.top_k = 3;
  all[3].warp.min_p = 0.05F;
  return all;
}

constexpr int kSampled = 3;
const Tokens kPrompt = {4, 0, 1, 2, 0, 1, 3, 0, 1};

std::map<Tokens, double> enumerate(const reference::Model& model, const Warp& warp) {
  std::map<Tokens, double> joint = {{{}, 1.0}};
  for (int i = 0; i < kSampled; ++i) {
    std::map<Tokens, double> longer;
    for (const auto& [tokens, p] : joint) {
      const auto row = reference::Row(model, reference::joined(kPrompt, tokens)).warped(warp);
      for (size_t t = 0; t < row.size(); ++t) {
        if (row[t] == 0) continue;
        longer[reference::joined(tokens, {static_cast<Token>(t)})] = p * double{row[t]};
      }
    }
    joint = std::move(longer);
  }
  return joint;
}

BoxOptions for_sampling() {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].config = tiny_model(5, 2, 5);
  o.models[1].config = tiny_model(6, 1, 5);
  for (BoxModel& m : o.models) m.pool.pages = 2000;
  return o;
}

void expect_the_targets_distribution(const Setting& setting) {
  Box box{for_sampling()};
  std::map<Tokens, int> count;
  int64_t accepted = 0, rejected = 0;
  const auto make = [&](uint64_t seed) {
    SequenceSpec s = box.spec(kPrompt, kSampled + 1);
    s.warp = setting.warp;
    s.warp.seed = seed;
    use_drafting(s, setting.params);
    return s;
  };
  sample(box, kDraws, make, [&](const Recorder& r) {
    ++count[Tokens(r.tokens.begin(), r.tokens.begin() + kSampled)];
    for (size_t i = 1; i < r.emitted.size(); ++i) {
      ++(r.emitted[i].provenance.proposed == Source::kLarge ? rejected : accepted);
    }
  });
  if (testing::Test::HasFatalFailure()) return;
  double z = 0;
  EXPECT_TRUE(chi_square_fits(enumerate(reference::Model(box.config()), setting.warp), count, &z))
      << setting.name << ": z = " << z;
  EXPECT_GT(accepted, kDraws / 10) << setting.name;
  EXPECT_GT(rejected, kDraws / 10) << setting.name;
}

TEST(Speculative, ChainedDraftsSampleTheTargetsDistribution) {
  expect_the_targets_distribution(settings()[0]);
}
TEST(Speculative, ConfidentDraftsSampleTheTargetsDistribution) {
  expect_the_targets_distribution(settings()[1]);
}
TEST(Speculative, NgramDraftsSampleTheTargetsDistribution) {
  expect_the_targets_distribution(settings()[2]);
}
TEST(Speculative, TruncatedDraftsSampleTheTargetsDistribution) {
  expect_the_targets_distribution(settings()[3]);
}

// The tests above can fail: a well-known mistake, on the reference that the engine equals.
TEST(Speculative, ResamplingFromPOnRejectionIsNoticed) {
  if (kSanitized) GTEST_SKIP() << "too few draws, and no code of the engine";
  const reference::Model target(for_sampling().models[0].config);
  const reference::Model draft(for_sampling().models[1].config);
  for (const size_t i : {0, 3}) {
    const Setting setting = settings()[i];
    const auto expected = enumerate(target, setting.warp);
    for (const bool broken : {false, true}) {
      std::map<Tokens, int> count;
      for (uint64_t seed = 0; seed < kDraws; ++seed) {
        Warp w = setting.warp;
        w.seed = seed;
        const auto r = reference::speculative(target, draft, kPrompt, w, setting.params, {},
                                              kSampled + 1, broken);
        ++count[Tokens(r.tokens.begin(), r.tokens.begin() + kSampled)];
      }
      EXPECT_EQ(chi_square_fits(expected, count), !broken) << setting.name;
    }
  }
}

}  // namespace
}  // namespace tandem::test
