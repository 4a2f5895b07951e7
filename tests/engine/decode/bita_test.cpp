#include "engine/decode/bita.h"

#include <memory>

#include "engine/decode/pacing/acceptance_stats.h"
#include "tests/engine/decode/method_checks.h"
#include "tests/reference/autoregressive.h"
#include "tests/reference/bita.h"

namespace tandem::test {
namespace {

using reference::Tokens;

constexpr int kMostRows = 40;  // of a tree

BitaParams fixed_tree() {
  BitaParams a{.num_masks = kBitaMasks, .adapter = ""};
  a.pace = Pace::kFixed;
  return a;
}

BitaParams random_bita(Rng& rng) {
  BitaParams a = fixed_tree();
  do {
    a.num_masks = between(rng, 1, 4);
    a.num_candidates = between(rng, 1, 4);
    a.tree = static_cast<BitaTreeKind>(between(rng, 0, 5));
  } while (bita_tree_rows(a.tree, *a.num_masks, a.num_candidates) > kMostRows);
  if (chance(rng, 40)) a.draft_vocabulary = between(rng, 1, 12);
  return a;
}

void use_bita(SequenceSpec& s, const BitaParams& a) {
  CastRole large{Role::kLarge, ModelId(0), 0};
  large.mask_adapter = kAdapter;
  s.cast = make_cast({large});
  s.extra_rows = bita_tree_rows(a.tree, *a.num_masks, a.num_candidates);
  s.method = [a](Gen g) { return bita(g, a); };
}

// Masks that are right now and then, sometimes never or always.
BoxOptions random_box(Rng& rng, bool tight) {
  BoxOptions o = random_pair(rng);
  o.models.resize(1);
  o.models[0].config.mask_accuracy = chance(rng, 20) ? 0 : chance(rng, 20) ? 1 : fraction(rng);
  // Prompts of 10 and 20 tokens at most, and a tree: holds one request, and not two.
  if (tight) o.models[0].pool = {4, (30 + kMostRows) / 4 + 1, 0};
  return o;
}

struct BitaSeen {
  int64_t accepted = 0, preempted = 0, biased = 0;
  int64_t restricted = 0;  // requests whose tree follows from the draft vocabulary
};

// Tokens, greedy and under a seed autoregressive decoding's, statistics and provenance.
struct BitaCase {
  BitaCase(const BoxOptions& o, BitaSeen* s) : box(o), seen(s) {}

  reference::Foretold ask(SequenceSpec& s, Rng& rng) const {
    const BitaParams a = random_bita(rng);
    use_bita(s, a);
    const auto by_reference = [&](bool biased) {
      return reference::bita(reference::Model(box.config()), s.prompt, s.warp, a, kAdapter,
                             s.stops.eos, s.stops.max_new_tokens, biased);
    };
    reference::Foretold expected = by_reference(false);
    EXPECT_EQ(expected.tokens, reference::autoregressive(box.config(), s.prompt, s.warp,
                                                         s.stops.eos, s.stops.max_new_tokens));
    seen->biased += by_reference(true).tokens != expected.tokens;
    BitaParams all = a;
    all.draft_vocabulary = 0;
    seen->restricted += reference::bita(reference::Model(box.config()), s.prompt, s.warp, all,
                                        kAdapter, s.stops.eos, s.stops.max_new_tokens)
                            .masks != expected.masks;
    return expected;
  }
  void compare(const Recorder& r, const reference::Foretold& expected) const {
    const MethodStats& got = r.end.stats;
    EXPECT_EQ(got.accept_lengths, expected.stats.accept_lengths);
    EXPECT_EQ(got.draft_tokens, expected.stats.draft_tokens);
    std::vector<int> masks;
    std::vector<int64_t> by_mask;
    for (const Emitted& e : r.emitted) {
      masks.push_back(e.provenance.proposed == Source::kMask ? e.provenance.index : -1);
      EXPECT_EQ(e.provenance.confirmed, Source::kLarge);
      if (masks.back() < 0) continue;
      by_mask.resize(std::max(by_mask.size(), static_cast<size_t>(masks.back()) + 1));
      ++by_mask[static_cast<size_t>(masks.back())];
    }
    EXPECT_EQ(masks, expected.masks);
    EXPECT_EQ(got.tokens_by_index, by_mask);
    seen->accepted += got.small_tokens;
    seen->preempted += got.preemptions;
  }

  Box box;
  BitaSeen* seen;
};

BitaSeen bita_against_the_reference(uint64_t first_seed, int boxes, bool tight) {
  BitaSeen seen;
  expect_equals_reference(first_seed, boxes, [&](Rng& rng) {
    return std::make_unique<BitaCase>(random_box(rng, tight), &seen);
  });
  return seen;
}

TEST(Bita, EqualsTheReference) {
  const BitaSeen seen = bita_against_the_reference(0, 400, /*tight=*/false);
  EXPECT_GT(seen.accepted, cases(5000));
  EXPECT_GT(seen.biased, cases(500)) << "a biased walk would have been noticed";
  EXPECT_GT(seen.restricted, cases(100));
}

TEST(Bita, EvictionsChangeNothing) {
  const BitaSeen seen = bita_against_the_reference(10000, 200, /*tight=*/true);
  EXPECT_GT(seen.accepted, cases(2000));
  EXPECT_GT(seen.preempted, cases(200));
}

TEST(Bita, LeavesOnlyFinalRows) {
  EXPECT_GT(
      expect_final_rows_only(100, [](SequenceSpec& s, Rng& rng) { use_bita(s, random_bita(rng)); }),
      10000);
}

TEST(Bita, SampledTokensAreThoseOfAr) {
  int64_t accepted = 0;
  expect_the_tokens_of_ar(
      800,
      [](SequenceSpec& s, Rng& rng) {
        BitaParams a;
        do {
          a = random_bita(rng);
        } while (bita_tree_rows(a.tree, *a.num_masks, a.num_candidates) > 6);
        if (chance(rng, 50)) a.pace = Pace::kFastest;
        use_bita(s, a);
      },
      [&](const MethodStats& stats) { accepted += stats.small_tokens; });
  EXPECT_GT(accepted, 300);
}

TEST(Bita, StopsWhereArDoes) {
  BoxOptions o;
  o.models[0].config.mask_accuracy = 1;
  for (const BitaTreeKind kind : {BitaTreeKind::kEfficient, BitaTreeKind::kStraightforward}) {
    BitaParams a = fixed_tree();
    a.tree = kind;
    expect_stops_where_ar_does(o, [&](SequenceSpec& s) { use_bita(s, a); });
  }
}

// All masks right: a pass makes M + 1 tokens, but the first, which has no tree yet.
TEST(Bita, PassesWhereAllMasksAreRight) {
  for (const BitaTreeKind kind :
       {BitaTreeKind::kEfficient, BitaTreeKind::kSpine, BitaTreeKind::kTriangle,
        BitaTreeKind::kFull, BitaTreeKind::kChain}) {
    BoxOptions o;
    o.models[0].config.mask_accuracy = 1;
    Box box{o};
    SequenceSpec s = box.spec({3, 1, 2}, 13);
    BitaParams a = fixed_tree();
    a.num_candidates = 3;
    a.tree = kind;
    use_bita(s, a);
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    EXPECT_EQ(r->tokens, box.greedy({3, 1, 2}, 13));
    EXPECT_EQ(r->end.stats.large_passes, 4) << "1, and 3 times 3 masks' tokens and its own";
    EXPECT_EQ(r->end.stats.accept_lengths, (std::vector<int64_t>{0, 0, 0, 3}));
    EXPECT_EQ(r->end.stats.small_tokens, 9);
    for (size_t i = 0; i < r->emitted.size(); ++i) {
      const Provenance& p = r->emitted[i].provenance;
      EXPECT_FALSE(p.corrected);
      EXPECT_EQ(p.proposed, i % 4 == 0 ? Source::kLarge : Source::kMask);
      if (i % 4 != 0) EXPECT_EQ(p.index, static_cast<int>(i % 4) - 1);
    }
  }
}

// A chain whose masks hang on the root alone: what is left of them behind what was accepted.
TEST(Bita, StraightforwardContinuesWithTheRemainingMasks) {
  BoxOptions o;
  o.models[0].config.mask_accuracy = 1;
  Box box{o};
  SequenceSpec s = box.spec({3, 1, 2}, 20);
  BitaParams a = fixed_tree();
  a.tree = BitaTreeKind::kStraightforward;
  use_bita(s, a);
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok());
  EXPECT_EQ(r->tokens, box.greedy({3, 1, 2}, 20));
  // Three drafts, then none: all masks were spent.
  EXPECT_EQ(r->end.stats.accept_lengths, (std::vector<int64_t>{0, 0, 0, 4}));
  EXPECT_EQ(r->end.stats.large_passes, 8);
}

// Rows that cost next to nothing or more than tokens are worth, alone or beside others, and masks
// that are often right: never a token but autoregressive decoding's.
TEST(Bita, TheBudgetOfRowsChangesNoToken) {
  int64_t accepted = 0, passes = 0, tokens = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Rng rng(seed);
    BoxOptions o = random_box(rng, /*tight=*/seed % 3 == 0);
    o.models[0].config.pass_seconds = 0.01;
    o.models[0].config.row_seconds = 0.01 * fraction(rng) * fraction(rng);
    Box box{o};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 6; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      Tokens expected = reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                                  s.stops.max_new_tokens);
      BitaParams a = random_bita(rng);
      a.pace = Pace::kFastest;
      use_bita(s, a);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [r, expected] : all) {
      ASSERT_TRUE(r->ok()) << seed << ": " << r->end.status;
      ASSERT_EQ(r->tokens, expected) << seed;
      accepted += r->end.stats.small_tokens;
      passes += r->end.stats.large_passes;
      tokens += static_cast<int64_t>(expected.size());
    }
    box.expect_idle();
  }
  EXPECT_GT(accepted, 500);
  EXPECT_LT(passes, tokens);
}

struct Cost {
  double seconds = 0;
  int64_t passes = 0;
};

// Of 200 tokens by `others` requests beside each other, with masks that are always right or never.
Cost cost_of(double mask_accuracy, double row_seconds, int requests, bool by_ar) {
  BoxOptions o;
  o.models[0].config = tiny_model(5, 3, 40);
  o.models[0].config.mask_accuracy = mask_accuracy;
  o.models[0].config.pass_seconds = 0.01;
  o.models[0].config.row_seconds = row_seconds;
  o.models[0].pool = {16, 400, 0};
  Box box{o};
  Cost cost;
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < requests; ++i) {
    SequenceSpec s = box.spec({3, 1, i}, 200);
    s.prefix_cache = false;
    if (!by_ar) use_bita(s, {.num_masks = 3, .num_candidates = 3, .adapter = ""});
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  for (const auto& r : all) {
    EXPECT_TRUE(r->ok());
    cost.passes += r->end.stats.large_passes;
  }
  cost.seconds = seconds(box.clock.now().time_since_epoch());
  return cost;
}

// Of answers of 200 tokens, of which the first ones tell what rows cost.
TEST(Bita, IsNeverMuchSlowerThanAr) {
  for (const double row : {0.0001, 0.002, 0.02}) {
    for (const int requests : {1, 6}) {
      const Cost ar = cost_of(0, row, requests, true), bita = cost_of(0, row, requests, false);
      EXPECT_LT(bita.seconds, 1.15 * ar.seconds) << row << ", " << requests << " requests";
    }
  }
}

TEST(Bita, IsFastWhereMasksAreRightAndRowsAreCheap) {
  const double ar = cost_of(1, 0.0001, 1, true).seconds;
  EXPECT_LT(cost_of(1, 0.0001, 1, false).seconds, ar / 2.8) << "of 4 tokens in a pass";
  // Rows that cost a fifth of a pass: few masks.
  EXPECT_LT(cost_of(1, 0.002, 1, false).seconds, cost_of(1, 0.002, 1, true).seconds / 1.3);
}

TEST(Bita, WhereTreesDoNotPayALaterRequestHasNone) {
  BoxOptions o;
  o.models[0].config = tiny_model(5, 3, 40);
  o.models[0].config.mask_accuracy = 0;
  o.models[0].config.pass_seconds = 0.01;
  o.models[0].config.row_seconds = 0.005;
  o.models[0].pool = {16, 400, 0};
  Box box{o};
  BitaParams a{.num_masks = kBitaMasks, .adapter = ""};
  a.stats = std::make_shared<AcceptanceStats>();
  const auto drafts = [&](int tokens) {
    SequenceSpec s = box.spec({3, 1, 2}, tokens);
    use_bita(s, a);
    const auto r = box.submit(std::move(s));
    box.pump();
    EXPECT_EQ(r->tokens, box.greedy({3, 1, 2}, tokens));
    return r->end.stats.draft_tokens;
  };
  EXPECT_GT(drafts(100), 0) << "somebody has to try";
  EXPECT_EQ(drafts(20), 0);
  a.stats = nullptr;
  EXPECT_GT(drafts(20), 0);
}

// Where many share the batches a row costs as much as it does, and the pass next to nothing.
TEST(Bita, HasFewerRowsUnderLoad) {
  const Cost alone = cost_of(1, 0.002, 1, false), crowd = cost_of(1, 0.002, 12, false);
  EXPECT_LT(alone.passes, 120);
  EXPECT_GT(crowd.passes, 12 * 150) << "of 200 tokens each";
}

TEST(Bita, BannedTokensAreNoCandidates) {
  BoxOptions o;
  o.models[0].config = tiny_model(1, 2, 8);
  Box box{o};
  const auto drafts = [&](std::vector<std::pair<Token, float>> bias) {
    SequenceSpec s = box.spec({3, 1, 2}, 20);
    auto processors = std::make_shared<Processors>();
    processors->prompt_tokens = 3;
    processors->bias = std::move(bias);
    s.warp.processors = processors;
    BitaParams a = fixed_tree();
    a.num_masks = 1;
    a.num_candidates = 3;
    use_bita(s, a);
    const auto r = box.submit(std::move(s));
    box.pump();
    EXPECT_TRUE(r->ok());
    return r->end.stats.accept_lengths;
  };
  // With all but three tokens banned each of these is a candidate: every draft is right.
  const float banned = -std::numeric_limits<float>::infinity();
  const auto lengths = drafts({{0, banned}, {2, banned}, {4, banned}, {6, banned}, {7, banned}});
  ASSERT_EQ(lengths.size(), 2U);
  EXPECT_EQ(lengths[0], 0);
  EXPECT_GT(drafts({})[0], 0);
}

TEST(Bita, LogprobsAreTheLargeModels) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    Box box{random_box(rng, false)};
    SequenceSpec s = random_spec(box, rng, chance(rng, 50));
    use_bita(s, random_bita(rng));
    expect_logprobs_of_large(box, std::move(s));
  }
}

}  // namespace
}  // namespace tandem::test
