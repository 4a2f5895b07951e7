#include "engine/decode/bita.h"

#include "tests/engine/decode/method_checks.h"
#include "tests/reference/autoregressive.h"
#include "tests/reference/bita.h"

namespace tandem::test {
namespace {

using reference::Tokens;

const AdapterId kAdapter(3);
constexpr int kMostRows = 40;  // of a tree

BitaParams random_params(Rng& rng) {
  BitaParams a;
  do {
    a.num_masks = between(rng, 1, 4);
    a.num_candidates = between(rng, 1, 4);
    a.tree = static_cast<BitaTreeKind>(between(rng, 0, 5));
  } while (bita_tree_rows(a.tree, a.num_masks, a.num_candidates) > kMostRows);
  return a;
}

void use(SequenceSpec& s, const BitaParams& a) {
  RoleModel large{Role::kLarge, ModelId(0), 0};
  large.masks = kAdapter;
  s.roles = {large};
  s.extra_rows = bita_tree_rows(a.tree, a.num_masks, a.num_candidates);
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

struct Seen {
  int64_t accepted = 0, preempted = 0, biased = 0;
};

// Random requests, some at once, against the reference: tokens, statistics and provenance (METHODS
// F.8, F.9), and autoregressive decoding's tokens, greedy and under a seed (F.1).
Seen expect_equals_reference(uint64_t first_seed, int boxes, bool tight) {
  Seen seen;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(boxes); ++seed) {
    Rng rng(seed);
    Box box{random_box(rng, tight)};
    const reference::Model model(box.config());
    struct Sent {
      std::shared_ptr<Recorder> recorder;
      reference::Foretold expected;
    };
    std::vector<Sent> all;
    for (int i = 0; i < 8; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      const BitaParams a = random_params(rng);
      use(s, a);
      Sent& sent = all.emplace_back();
      const auto by_reference = [&](bool biased) {
        return reference::bita(model, s.prompt, s.warp, a, kAdapter, s.stops.eos,
                               s.stops.max_new_tokens, biased);
      };
      sent.expected = by_reference(false);
      EXPECT_EQ(sent.expected.tokens,
                reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                          s.stops.max_new_tokens));
      seen.biased += by_reference(true).tokens != sent.expected.tokens;
      sent.recorder = box.submit(std::move(s));
    }
    box.pump();
    for (const Sent& sent : all) {
      EXPECT_TRUE(sent.recorder->ok()) << seed << ": " << sent.recorder->end.status;
      EXPECT_EQ(sent.recorder->tokens, sent.expected.tokens) << seed;
      const MethodStats& got = sent.recorder->end.stats;
      EXPECT_EQ(got.accept_lengths, sent.expected.stats.accept_lengths) << seed;
      EXPECT_EQ(got.draft_tokens, sent.expected.stats.draft_tokens) << seed;
      std::vector<int> masks;
      for (const Emitted& e : sent.recorder->emitted) {
        const bool by_mask = e.provenance.proposed == Source::kMask;
        masks.push_back(by_mask ? e.provenance.index : -1);
        EXPECT_EQ(e.provenance.confirmed, Source::kLarge);
      }
      EXPECT_EQ(masks, sent.expected.masks) << seed;
      seen.accepted += got.small_tokens;
      seen.preempted += got.preemptions;
      if (testing::Test::HasFailure()) return seen;
    }
    box.expect_idle();
  }
  return seen;
}

TEST(Bita, EqualsTheReference) {
  const Seen seen = expect_equals_reference(0, 400, /*tight=*/false);
  EXPECT_GT(seen.accepted, 5000);
  EXPECT_GT(seen.biased, 500) << "a biased walk would have been noticed";
}

TEST(Bita, EvictionsChangeNothing) {
  const Seen seen = expect_equals_reference(10000, 200, /*tight=*/true);
  EXPECT_GT(seen.accepted, 2000);
  EXPECT_GT(seen.preempted, 200);
}

TEST(Bita, LeavesOnlyFinalRows) {
  EXPECT_GT(
      expect_final_rows_only(100, [](SequenceSpec& s, Rng& rng) { use(s, random_params(rng)); }),
      10000);
}

TEST(Bita, SampledTokensAreThoseOfAr) {
  int64_t accepted = 0;
  expect_the_tokens_of_ar(
      800,
      [](SequenceSpec& s, Rng& rng) {
        BitaParams a;
        do {
          a = random_params(rng);
        } while (bita_tree_rows(a.tree, a.num_masks, a.num_candidates) > 6);
        use(s, a);
      },
      [&](const MethodStats& stats) { accepted += stats.small_tokens; });
  EXPECT_GT(accepted, 500);
}

TEST(Bita, StopsWhereArDoes) {
  BoxOptions o;
  o.models[0].config.mask_accuracy = 1;
  for (const BitaTreeKind kind : {BitaTreeKind::kEfficient, BitaTreeKind::kStraightforward}) {
    BitaParams a;
    a.tree = kind;
    expect_stops_where_ar_does(o, [&](SequenceSpec& s) { use(s, a); });
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
    BitaParams a;
    a.num_candidates = 3;
    a.tree = kind;
    use(s, a);
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
TEST(Bita, StraightforwardGoesOnWithTheMasksThatAreLeft) {
  BoxOptions o;
  o.models[0].config.mask_accuracy = 1;
  Box box{o};
  SequenceSpec s = box.spec({3, 1, 2}, 20);
  BitaParams a;
  a.tree = BitaTreeKind::kStraightforward;
  use(s, a);
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok());
  EXPECT_EQ(r->tokens, box.greedy({3, 1, 2}, 20));
  // Three drafts, then none: all masks were spent.
  EXPECT_EQ(r->end.stats.accept_lengths, (std::vector<int64_t>{0, 0, 0, 4}));
  EXPECT_EQ(r->end.stats.large_passes, 8);
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
    BitaParams a;
    a.num_masks = 1;
    a.num_candidates = 3;
    use(s, a);
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
    use(s, random_params(rng));
    expect_logprobs_of_large(box, std::move(s));
  }
}

}  // namespace
}  // namespace tandem::test
