#include "tests/reference/bild.h"

#include <cmath>
#include <limits>

#include "engine/decode/draft_pass.h"
#include "tests/engine/decode/method_checks.h"
#include "tests/reference/autoregressive.h"
#include "tests/sanitized.h"

namespace tandem::test {
namespace {

using reference::Tokens;

constexpr float kInf = std::numeric_limits<float>::infinity();

BildParams random_bild(Rng& rng) {
  BildParams a;
  a.fallback_threshold = chance(rng, 20) ? 0 : fraction(rng);
  a.rollback_threshold = chance(rng, 20) ? kInf : 5 * fraction(rng);
  a.max_small_run = chance(rng, 30) ? 0 : between(rng, 1, 10);
  a.verify_eos = chance(rng, 60);
  if (chance(rng, 20)) a.window = between(rng, 1, 6);
  if (chance(rng, 30)) a.num_masks = between(rng, 1, 2);
  return a;
}

void use_bild(SequenceSpec& s, BildParams a, std::vector<CastRole> roles) {
  if (roles[1].layers > 0) a.num_masks.reset();  // early exit has none
  if (a.num_masks) {
    roles[1].mask_adapter = kAdapter;
    s.extra_rows = parallel_draft_rows(*a.num_masks);
  }
  s.cast = make_cast(std::move(roles));
  s.method = [a](Gen g) { return bild(g, a); };
}

// `prefills`: small passes that BiLD's listing does not count.
void expect_stats(const MethodStats& got, const MethodStats& expected, int64_t prefills,
                  bool masked = false) {
  EXPECT_EQ(got.large_passes, expected.large_passes);
  const int64_t passes = expected.small_passes + prefills;
  if (masked) {
    EXPECT_LE(got.small_passes, passes);
  } else if (expected.small_passes > 0) {
    EXPECT_EQ(got.small_passes, passes);
  }
  EXPECT_EQ(got.own[BildFigures::kFallbacks], expected.own[BildFigures::kFallbacks]);
  EXPECT_EQ(got.own[BildFigures::kForcedCalls], expected.own[BildFigures::kForcedCalls]);
  EXPECT_EQ(got.own[BildFigures::kRollbacks], expected.own[BildFigures::kRollbacks]);
  EXPECT_EQ(got.own[BildFigures::kRolledBackTokens], expected.own[BildFigures::kRolledBackTokens]);
  EXPECT_EQ(got.small_tokens, expected.small_tokens);
  EXPECT_EQ(got.large_tokens, expected.large_tokens);
  EXPECT_EQ(got.accept_lengths, expected.accept_lengths);
  EXPECT_EQ(got.draft_tokens, expected.draft_tokens);
}

struct BildSeen {
  MethodStats sum;
  int64_t exact = 0, lossy = 0;
  int64_t spared = 0;  // passes of the small model, by masks
};

// Tokens and statistics; where bild_is_exact() says so, autoregressive decoding's tokens.
struct BildCase {
  BildCase(const BoxOptions& o, Rng& rng, bool exit_early, BildSeen* s)
      : box(o), exit(exit_early ? between(rng, 1, box.config().layers - 1) : 0), seen(s) {}

  reference::Bilded ask(SequenceSpec& s, Rng& rng) const {
    const BildParams a = random_bild(rng);
    use_bild(s, a, exit > 0 ? early_exit(exit) : two_models());
    const reference::Model large(box.config(0));
    const reference::Model small =
        exit > 0 ? reference::Model(box.config(0), exit) : reference::Model(box.config(1));
    reference::Bilded expected =
        reference::bild(large, small, s.prompt, s.warp, a, s.stops.eos, s.stops.max_new_tokens);
    expected.masked = exit == 0 && a.num_masks.has_value();
    const Tokens ar = reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                                s.stops.max_new_tokens);
    if (bild_is_exact(a, s.warp.greedy())) {
      ++seen->exact;
      EXPECT_EQ(expected.tokens, ar);
    } else {
      seen->lossy += expected.tokens != ar;
    }
    return expected;
  }
  void compare(const Recorder& r, const reference::Bilded& expected) const {
    const MethodStats& got = r.end.stats;
    expect_stats(got, expected.stats, exit > 0 ? 0 : 1, expected.masked);
    seen->spared += expected.stats.small_passes + (exit > 0 ? 0 : 1) - got.small_passes;
    for (size_t i = 0; i < MethodStats::kOwn; ++i) seen->sum.own[i] += got.own[i];
    seen->sum.small_tokens += got.small_tokens;
    seen->sum.preemptions += got.preemptions;
  }

  Box box;
  int exit;  // 0: two models
  BildSeen* seen;
};

BildSeen bild_against_the_reference(uint64_t first_seed, int boxes, bool tight, bool exit_early) {
  BildSeen seen;
  expect_equals_reference(first_seed, boxes, [&](Rng& rng) {
    BoxOptions o = random_pair(rng, tight);
    o.models[1].config.mask_accuracy = chance(rng, 20) ? 1 : fraction(rng);
    return std::make_unique<BildCase>(o, rng, exit_early, &seen);
  });
  return seen;
}

TEST(Bild, EqualsTheReference) {
  const BildSeen seen = bild_against_the_reference(0, 500, /*tight=*/false, /*exit_early=*/false);
  EXPECT_GT(seen.sum.own[BildFigures::kFallbacks], cases(1000));
  EXPECT_GT(seen.sum.own[BildFigures::kForcedCalls], cases(1000));
  EXPECT_GT(seen.sum.own[BildFigures::kRollbacks], cases(1000));
  EXPECT_GT(seen.sum.small_tokens, cases(5000));
  EXPECT_GT(seen.exact, cases(50));
  EXPECT_GT(seen.lossy, cases(500));
  EXPECT_GT(seen.spared, cases(300));
}

TEST(Bild, EarlyExitEqualsTheReference) {
  const BildSeen seen = bild_against_the_reference(5000, 500, /*tight=*/false, /*exit_early=*/true);
  EXPECT_GT(seen.sum.own[BildFigures::kFallbacks], cases(1000));
  EXPECT_GT(seen.sum.own[BildFigures::kRollbacks], cases(1000));
  EXPECT_GT(seen.exact, cases(50));
}

TEST(Bild, EvictionsChangeNothing) {
  EXPECT_GT(bild_against_the_reference(10000, 200, /*tight=*/true, false).sum.preemptions,
            cases(200));
  EXPECT_GT(bild_against_the_reference(20000, 200, /*tight=*/true, true).sum.preemptions,
            cases(200));
}

// --- docs/reliability.md, oracles 2 to 4, against autoregressive decoding itself

// `n` prompts by BiLD and by autoregressive decoding of model `ar_model`: how many differ?
int differences(uint64_t seed, const BildParams& a, float temperature, int n, bool same = false,
                int ar_model = 0) {
  Rng rng(seed);
  BoxOptions o = random_pair(rng);
  if (same) o.models[1].config = o.models[0].config;
  Box box{o};
  std::vector<std::pair<std::shared_ptr<Recorder>, std::shared_ptr<Recorder>>> all;
  for (int i = 0; i < n; ++i) {
    SequenceSpec s = random_spec(box, rng, true);
    s.warp.temperature = temperature;
    SequenceSpec ar = box.spec(s.prompt, s.stops.max_new_tokens);
    ar.warp = s.warp;
    ar.stops.eos = s.stops.eos;
    ar.cast = make_cast({{Role::kLarge, ModelId(ar_model), 0}});
    use_bild(s, a, two_models());
    auto first = box.submit(std::move(s));
    all.emplace_back(std::move(first), box.submit(std::move(ar)));
  }
  box.pump();
  int different = 0;
  for (const auto& [x, y] : all) {
    EXPECT_TRUE(x->ok() && y->ok()) << seed;
    different += x->tokens != y->tokens || x->end.reason != y->end.reason;
    if (same) EXPECT_EQ(x->end.stats.own[BildFigures::kRollbacks], 0);
  }
  return different;
}

TEST(Bild, ExactWithARollbackThresholdUnderLn2) {
  int lossy = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    BildParams a;
    a.fallback_threshold = static_cast<float>(seed % 101) / 100;
    a.rollback_threshold = 0.69F;
    a.max_small_run = static_cast<int>(seed % 12);
    ASSERT_TRUE(bild_is_exact(a, /*greedy=*/true));
    ASSERT_EQ(differences(seed, a, 0, 10), 0) << seed;
    a.rollback_threshold = 5;
    lossy += differences(seed, a, 0, 10);
  }
  EXPECT_GT(lossy, 500) << "or the test above would say nothing";
}

TEST(Bild, AFallbackThresholdAbove1IsLargeAlone) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    BildParams a;
    a.fallback_threshold = 1.01F;
    a.rollback_threshold = kInf;
    a.verify_eos = seed % 2 == 0;
    ASSERT_TRUE(bild_is_exact(a, seed % 3 == 0));
    ASSERT_EQ(differences(seed, a, seed % 3 == 0 ? 0 : 1.2F, 8), 0) << seed;
  }
}

TEST(Bild, SampledAndExactItGivesTheTokensOfAutoregressiveDecoding) {
  int64_t small = 0;
  const auto use_exact = [](SequenceSpec& s, Rng& rng) {
    BildParams a = random_bild(rng);
    a.fallback_threshold = 1.01F + fraction(rng) / 2;
    a.window.reset();
    ASSERT_TRUE(bild_is_exact(a, /*greedy=*/false));
    use_bild(s, a, chance(rng, 70) ? two_models() : early_exit(1));
  };
  expect_the_tokens_of_ar(1000, use_exact,
                          [&](const MethodStats& stats) { small += stats.small_tokens; });
  EXPECT_EQ(small, 0);
}

// The last token is large's in any case: small is not asked for a guess at it.
TEST(Bild, TheLastTokenNeedsNoSmallPass) {
  for (const bool exit_early : {false, true}) {
    Rng rng(3);
    Box box{random_pair(rng)};
    BildParams a;
    a.fallback_threshold = 0;
    a.max_small_run = 1;
    a.rollback_threshold = kInf;
    int64_t passes[2];
    for (const int tokens : {3, 4}) {  // large's first; one of small's and large's next; one more
      SequenceSpec s = box.spec({0, 1, 2}, tokens);
      s.prefix_cache = false;
      use_bild(s, a, exit_early ? early_exit(1) : two_models());
      const auto r = box.submit(std::move(s));
      box.pump();
      ASSERT_EQ(r->tokens.size(), static_cast<size_t>(tokens));
      EXPECT_EQ(r->emitted.back().provenance.proposed, Source::kLarge);
      passes[tokens - 3] = r->end.stats.small_passes;
    }
    EXPECT_EQ(passes[0], passes[1]);

    // Neither does the last one of a longer run.
    a.max_small_run = 10;
    SequenceSpec s = box.spec({0, 1, 2}, 6);
    s.prefix_cache = false;
    use_bild(s, a, exit_early ? early_exit(1) : two_models());
    const auto r = box.submit(std::move(s));
    box.pump();
    EXPECT_EQ(r->emitted.back().provenance.proposed, Source::kLarge);
    EXPECT_EQ(r->end.stats.small_passes, (exit_early ? 0 : 1) + 4);
  }
}

// Ids that the small model may not draft cost speed alone.
TEST(Bild, ADraftVocabularyChangesNoTokenWhereItIsExact) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    BildParams a;
    a.fallback_threshold = static_cast<float>(seed % 7) / 10;
    a.rollback_threshold = 0.69F;
    a.draft_vocabulary = 1 + static_cast<int>(seed % 9);
    a.drafts_text_ids = seed % 2 == 0;
    ASSERT_EQ(differences(seed, a, 0, 10), 0) << seed;
  }
}

TEST(Bild, NeverRollsBackWhereSmallIsLarge) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    BildParams a;
    a.fallback_threshold = static_cast<float>(seed % 60) / 60;
    a.rollback_threshold = 0;
    ASSERT_EQ(differences(seed, a, 0, 8, /*same=*/true), 0) << seed;
  }
}

// After large's first token all is small's: greedy, and sampled with the same seed.
TEST(Bild, WithoutRollbackAndVerificationIsSmallAlone) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng, /*tight=*/seed % 2 == 0)};
    BildParams a;
    a.fallback_threshold = 0;
    a.rollback_threshold = kInf;
    a.max_small_run = 0;
    a.verify_eos = false;
    SequenceSpec s = random_spec(box, rng, chance(rng, 50));
    s.stops.max_new_tokens = between(rng, 2, 20);
    Tokens expected = reference::autoregressive(box.config(0), s.prompt, s.warp, s.stops.eos, 1);
    const bool more = !expected.empty();
    if (more) {
      const Tokens rest =
          reference::autoregressive(box.config(1), reference::joined(s.prompt, expected), s.warp,
                                    s.stops.eos, s.stops.max_new_tokens - 1);
      expected = reference::joined(expected, rest);
    }
    use_bild(s, a, two_models());
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    ASSERT_EQ(r->tokens, expected) << seed;
    EXPECT_EQ(r->end.stats.large_passes, 1);
    for (size_t i = 1; i < r->emitted.size(); ++i) {
      EXPECT_EQ(r->emitted[i].provenance.proposed, Source::kSmall);
      EXPECT_EQ(r->emitted[i].provenance.confirmed, Source::kSmall);
    }
  }
}

TEST(Bild, SaysWhenItIsExact) {
  BildParams a;  // the papers' defaults
  EXPECT_FALSE(bild_is_exact(a, true));
  a.rollback_threshold = 0.69F;
  EXPECT_TRUE(bild_is_exact(a, true));
  EXPECT_FALSE(bild_is_exact(a, false)) << "a sample is not its distribution's argmax";
  a.rollback_threshold = 0.6932F;
  EXPECT_FALSE(bild_is_exact(a, true)) << "above ln 2";
  a.rollback_threshold = 0;
  EXPECT_TRUE(bild_is_exact(a, true));
  a.verify_eos = false;
  EXPECT_FALSE(bild_is_exact(a, true)) << "an end of small's stands";
  a.fallback_threshold = 1;
  EXPECT_FALSE(bild_is_exact(a, true)) << "a saturated softmax is 1";
  a.fallback_threshold = 1.5F;
  EXPECT_TRUE(bild_is_exact(a, true));
  EXPECT_TRUE(bild_is_exact(a, false));
  a.window = 3;
  EXPECT_FALSE(bild_is_exact(a, true)) << "a window asks no threshold";
}

// With a single token every probability is 1 and every cross-entropy 0.
TEST(Bild, ThresholdsAreStrict) {
  for (const float temperature : {0.0F, 1.0F}) {
    BoxOptions o;
    o.models.resize(2);
    for (BoxModel& m : o.models) m.config = tiny_model(1, 2, 1);
    Box box{o};
    BildParams a;
    a.fallback_threshold = 1;
    a.rollback_threshold = 0;
    SequenceSpec s = box.spec({0}, 9);
    s.warp.temperature = temperature;
    use_bild(s, a, two_models());
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    EXPECT_EQ(r->end.stats.own[BildFigures::kFallbacks], 0) << "1 is not below 1";
    EXPECT_EQ(r->end.stats.own[BildFigures::kRollbacks], 0) << "0 is not above 0";
    EXPECT_EQ(r->end.stats.small_tokens, 7) << "all but the first and the last token";
  }
}

// --- Sampling

// With fallback off, token 2 is small's x if its cross-entropy under large is low enough, else a
// draw from large that does not depend on x: P(x) = q(x) [d(x) <= alpha] + P_q(d > alpha) p(x).
std::map<Tokens, double> first_two(const reference::Model& large, const reference::Model& small,
                                   const Tokens& prompt, const Warp& w, double alpha) {
  std::map<Tokens, double> joint;
  const auto first = reference::Row(large, prompt).warped(w);
  for (Token a = 0; a < large.config.vocab_size; ++a) {
    const Tokens before = reference::joined(prompt, {a});
    const reference::Row row(large, before);
    const auto p = row.warped(w), q = reference::Row(small, before).warped(w);
    double replaced = 0;
    for (Token x = 0; x < large.config.vocab_size; ++x) {
      if (-row.log_softmax(x) > alpha) replaced += double{q[static_cast<size_t>(x)]};
    }
    for (Token x = 0; x < large.config.vocab_size; ++x) {
      const auto i = static_cast<size_t>(x);
      double p_x = replaced * double{p[i]};
      if (-row.log_softmax(x) <= alpha) p_x += double{q[i]};
      p_x *= double{first[static_cast<size_t>(a)]};
      if (p_x > 0) joint[{a, x}] = p_x;
    }
  }
  return joint;
}

TEST(Bild, CorrectionsAreIndependentOfWhatTheyReplace) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].config = tiny_model(5, 2, 8);
  o.models[1].config = tiny_model(6, 1, 8);
  for (BoxModel& m : o.models) m.pool.pages = 2000;
  Box box{o};
  const reference::Model large(box.config(0)), small(box.config(1));
  const Tokens prompt = {1, 2};
  Warp w;
  w.temperature = 2;
  BildParams a;
  a.fallback_threshold = 0;
  a.rollback_threshold = 2.5F;
  const auto expected = first_two(large, small, prompt, w, double{a.rollback_threshold});
  std::map<Tokens, int> count, broken;
  int64_t rollbacks = 0;
  const auto make = [&](uint64_t seed) {
    w.seed = seed;
    if (!kSanitized) {
      const Tokens same_number =
          reference::bild(large, small, prompt, w, a, {}, 3, sampling::Purpose::kToken).tokens;
      ++broken[Tokens(same_number.begin(), same_number.begin() + 2)];
    }
    SequenceSpec s = box.spec(prompt, 3);
    s.warp = w;
    use_bild(s, a, two_models());
    return s;
  };
  sample(box, kDraws, make, [&](const Recorder& r) {
    ++count[Tokens(r.tokens.begin(), r.tokens.begin() + 2)];
    rollbacks += r.end.stats.own[BildFigures::kRollbacks];
  });
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_GT(rollbacks, kDraws / 5);
  double z = 0;
  EXPECT_TRUE(chi_square_fits(expected, count, &z)) << z;
  if (kSanitized) return;
  EXPECT_FALSE(chi_square_fits(expected, broken)) << "one number for both draws";
}

// --- Early exit

// Small's rows are never run again: l * (rows fed) + (d - l) * (rows verified) layers in all; and
// the output is that of BiLD with the first l layers as a model of their own.
TEST(Bild, EarlyExitRunsEachLayerOfARowOnce) {
  int64_t rows = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    BoxOptions o = random_pair(rng);
    const int d = o.models[0].config.layers, l = between(rng, 1, d - 1);
    o.models[1].config = o.models[0].config;
    o.models[1].config.layers = l;  // the fake's answers after l layers
    Box box{o};
    CacheWatch watch(&box);
    for (int i = 0; i < 3; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      s.prefix_cache = false;  // every row of the prompt is to be counted
      BildParams a = random_bild(rng);
      if (!a.verify_eos && a.rollback_threshold == kInf) a.verify_eos = true;  // see below
      const auto expected =
          reference::bild(reference::Model(box.config(0)), reference::Model(box.config(0), l),
                          s.prompt, s.warp, a, s.stops.eos, s.stops.max_new_tokens);
      SequenceSpec separate = box.spec(s.prompt, s.stops.max_new_tokens);
      separate.warp = s.warp;
      separate.stops.eos = s.stops.eos;
      use_bild(separate, a, two_models());
      use_bild(s, a, early_exit(l));
      const Tokens prompt = s.prompt;
      const auto r = box.submit(std::move(s));
      watch.follow(prompt, r);
      box.pump();
      ASSERT_TRUE(r->ok());
      EXPECT_EQ(watch.layer_rows, l * expected.rows_fed + (d - l) * expected.rows_verified);
      const auto other = box.submit(std::move(separate));
      watch.follow(prompt, other);
      box.pump();
      EXPECT_EQ(r->tokens, other->tokens);
      rows += expected.rows_verified;
      if (HasFailure()) FAIL() << "seed " << seed;
    }
  }
  EXPECT_GT(rows, 8000);
}

// --- Rounds

TEST(Bild, CachesHoldFinalTokensOnly) {
  const auto use_random = [](SequenceSpec& s, Rng& rng) {
    const BildParams a = random_bild(rng);
    use_bild(s, a, chance(rng, 50) ? two_models() : early_exit(1));
  };
  EXPECT_GT(expect_final_rows_only(150, use_random), 10000);
}

// A run without a limit goes through many rounds, and loses its caches between them.
TEST(Bild, UnlimitedRunsGoThroughEvictions) {
  int64_t preemptions = 0;
  for (const bool exit_early : {false, true}) {
    for (const bool unchecked : {false, true}) {
      BoxOptions o;
      o.models.resize(2);
      o.models[0].config = tiny_model(1, 4, 6);
      o.models[1].config = tiny_model(2, 2, 6);
      for (BoxModel& m : o.models) m.pool = {4, 40, 40};
      Box box{o};
      BildParams a;
      a.fallback_threshold = 0;
      a.max_small_run = 0;
      a.rollback_threshold = unchecked ? kInf : 4;
      a.verify_eos = !unchecked;
      std::vector<std::pair<std::shared_ptr<Recorder>, reference::Bilded>> all;
      for (Token i = 0; i < 4; ++i) {
        SequenceSpec s = box.spec({i, 1, 2}, 150);
        s.warp.temperature = i % 2 ? 1 : 0;
        auto expected = reference::bild(
            reference::Model(box.config(0)),
            exit_early ? reference::Model(box.config(0), 2) : reference::Model(box.config(1)),
            s.prompt, s.warp, a, {}, 150);
        use_bild(s, a, exit_early ? early_exit(2) : two_models());
        all.emplace_back(box.submit(std::move(s)), std::move(expected));
      }
      box.pump();
      for (const auto& [r, expected] : all) {
        ASSERT_TRUE(r->ok()) << r->end.status;
        EXPECT_EQ(r->tokens, expected.tokens);
        expect_stats(r->end.stats, expected.stats, exit_early ? 0 : 1);
        preemptions += r->end.stats.preemptions;
        EXPECT_EQ(r->end.stats.own[BildFigures::kForcedCalls], 0);
      }
    }
  }
  EXPECT_GT(preemptions, 4);
}

// Early exit, evicted again and again: what was lost goes all the way in chunks, and never lies
// between the layers as one pass that nothing can divide.
TEST(Bild, EarlyExitResumesInChunks) {
  constexpr int kStepRows = 8;
  for (const bool unchecked : {false, true}) {
    BoxOptions o;
    o.models[0].config = tiny_model(1, 4, 6);
    o.models[0].pool = {4, 30, 3};  // memory between two layers for a run, and not for a prompt
    o.models[0].prefix_cache = false;
    o.limits.step_rows = o.limits.prefill_chunk_rows = kStepRows;
    Box box{o};
    int most = 0;
    box.backends[0].set_faults([&most](const Batch& batch) {
      for (const Work& w : batch.works) most = std::max(most, w.run_rows());
      return Fault();
    });
    BildParams a;
    a.fallback_threshold = 0.1F;
    a.max_small_run = 6;
    a.rollback_threshold = unchecked ? kInf : 4;
    a.verify_eos = !unchecked;
    std::vector<std::pair<std::shared_ptr<Recorder>, reference::Bilded>> all;
    Rng rng(3);
    for (int i = 0; i < 4; ++i) {
      SequenceSpec s = box.spec(random_prompt(rng, 50, 60, 6), 40);
      const reference::Model large(box.config(0)), small(box.config(0), 2);
      auto expected = reference::bild(large, small, s.prompt, s.warp, a, {}, 40);
      use_bild(s, a, early_exit(2));
      edit_cast(s).roles.back().frontier_rows = longest_small_run(a) + 1;
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    int64_t preemptions = 0;
    for (const auto& [r, expected] : all) {
      ASSERT_TRUE(r->ok()) << r->end.status;
      EXPECT_EQ(r->tokens, expected.tokens);
      expect_stats(r->end.stats, expected.stats, 0);
      preemptions += r->end.stats.preemptions;
    }
    EXPECT_GT(preemptions, 0);
    EXPECT_LE(most, kStepRows);
    box.expect_idle();
  }
}

// No client can make large verify thousands of rows, with a distribution each, in one pass.
TEST(Bild, ARunWithoutALimitHasOne) {
  BoxOptions o;
  o.models[0].config = tiny_model(1, 4, 6);
  o.models[0].pool = {4, 256, 256};
  Box box{o};
  size_t most = 0;
  box.backends[0].set_faults([&most](const Batch& batch) {
    for (const Work& w : batch.works) most = std::max(most, w.outputs.size());
    return Fault();
  });
  BildParams a;
  a.fallback_threshold = 0;
  a.max_small_run = 0;
  a.rollback_threshold = 100;
  SequenceSpec s = box.spec({1, 2, 3}, 600);
  use_bild(s, a, early_exit(2));
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(r->tokens.size(), 600U);
  EXPECT_EQ(most, size_t{kLongestRun} + 1);
}

// An exact BiLD ends as autoregressive decoding does.
TEST(Bild, StopsWhereAutoregressiveDecodingStops) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].config = tiny_model(1, 4, 12);
  o.models[1].config = o.models[0].config;  // all of a run is kept
  BildParams a;
  a.fallback_threshold = 0.2F;
  a.rollback_threshold = 0.69F;
  a.max_small_run = 6;
  for (const auto& roles : {two_models(), early_exit(2)}) {
    expect_stops_where_ar_does(o, [&](SequenceSpec& s) { use_bild(s, a, roles); });
  }
}

// Exactly the rows that prompt and output need.
TEST(Bild, NeedsNoMoreRowsThanAutoregressiveDecoding) {
  for (const bool exit_early : {false, true}) {
    BoxOptions o;
    o.models.resize(2);
    o.models[1].config = o.models[0].config;
    for (BoxModel& m : o.models) m.pool = {4, 4, 4};
    Box box{o};
    BildParams a;
    a.fallback_threshold = 0;
    a.max_small_run = 0;
    SequenceSpec s = box.spec({1, 2, 3, 4}, 12);
    use_bild(s, a, exit_early ? early_exit(2) : two_models());
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    EXPECT_EQ(r->tokens.size(), 12U);
  }
}

// --- Log-probabilities

TEST(Bild, LogProbabilitiesAreLarges) {
  int64_t of_small = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng)};
    SequenceSpec s = random_spec(box, rng, chance(rng, 50));
    BildParams a = random_bild(rng);
    a.verify_eos = true;
    use_bild(s, a, two_models());
    const auto r = expect_logprobs_of_large(box, std::move(s));
    for (const Emitted& e : r->emitted) of_small += e.provenance.proposed == Source::kSmall;
  }
  EXPECT_GT(of_small, 150);
}

// The small model's own would look like the large model's, so they are not reported.
TEST(Bild, TokensThatLargeNeverSawHaveNoLogProbability) {
  int64_t of_small = 0, of_large = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng)};
    SequenceSpec s = random_spec(box, rng, chance(rng, 50));
    s.logprobs = true;
    s.top_logprobs = 2;
    BildParams a = random_bild(rng);
    a.rollback_threshold = kInf;
    a.verify_eos = false;
    use_bild(s, a, two_models());
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    for (const Emitted& e : r->emitted) {
      const bool large = e.provenance.confirmed == Source::kLarge;
      EXPECT_EQ(std::isnan(e.logprob), !large);
      EXPECT_EQ(e.top.empty(), !large);
      ++(large ? of_large : of_small);
    }
  }
  EXPECT_GT(of_small, 100);
  EXPECT_GT(of_large, 100);
}

}  // namespace
}  // namespace tandem::test
