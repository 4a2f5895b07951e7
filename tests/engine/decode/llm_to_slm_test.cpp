#include "engine/decode/llm_to_slm.h"

#include "engine/decode/autoregressive.h"
#include "engine/decode/beam.h"
#include "engine/decode/draft_pass.h"
#include "tests/engine/decode/method_checks.h"
#include "tests/reference/autoregressive.h"
#include "tests/reference/beam.h"
#include "tests/reference/llm_to_slm.h"

namespace tandem::test {
namespace {

using reference::Fusion;
using reference::Tokens;

constexpr int kLongestRead = 12;

// Who reads and what is fed: models 0 and 1 are the large and the small one, 2 and 3 their
// encoders.
struct Pair {
  bool from_encoder = false, into_encoder = false;
  Fusion f;
  Tokens source;  // of the small encoder
};

// Models that write and read differ in layers, device and what the small one is fed with.
BoxOptions random_boxes(Rng& rng, bool tight) {
  BoxOptions o = random_pair(rng, tight);
  o.models.push_back(o.models[0]);
  o.models.push_back(o.models[1]);
  for (BoxModel& m : o.models) m.pool.values = 20;
  if (tight) o.models[0].pool.frontier_pages = 5;
  if (tight) o.models[2].pool.pages = o.models[3].pool.pages = 4;
  return o;
}

Tokens random_tokens(Rng& rng, const Box& box, int longest) {
  Tokens tokens(static_cast<size_t>(between(rng, 1, longest)));
  for (Token& t : tokens) t = between(rng, 0, box.config().vocab_size - 1);
  return tokens;
}

Fusion random_fusion(Rng& rng, const Box& box) {
  Fusion f;
  f.adapter = chance(rng, 20) ? AdapterId() : AdapterId(between(rng, 0, 1));
  f.at = between(rng, 1, box.config(0).layers);
  f.replace = chance(rng, 50);
  f.distinct_tokenizer = f.replace && chance(rng, 50);
  return f;
}

// `most`: rows of a batch, in which an encoder's rows must all be.
Pair random_pair_of(Rng& rng, const Box& box, const Tokens& prompt, int most) {
  Pair p;
  const int longest = std::min(kLongestRead, most);
  p.f = random_fusion(rng, box);
  p.from_encoder = chance(rng, 60);
  p.into_encoder = p.from_encoder && chance(rng, 50);
  if (p.into_encoder) p.source = random_tokens(rng, box, longest);
  const Tokens& fed = p.into_encoder ? p.source : prompt;
  if (p.from_encoder) {
    p.f.at = box.config(2).layers;
    p.f.encoded = true;
    p.f.read = fed;
  }
  if (chance(rng, 50) || (p.from_encoder && static_cast<int>(fed.size()) > longest)) {
    p.f.read = random_tokens(rng, box, longest);
    int row = 0;
    for (size_t i = 0; i < fed.size(); ++i) {
      row = between(rng, row, static_cast<int>(p.f.read.size()) - 1);
      p.f.alignment.push_back(row);
    }
  }
  return p;
}

// The large model runs no layers above those that are read.
Cast cast_of(const Pair& p) {
  const Fusion& f = p.f;
  Cast cast{.roles = two_models()};
  cast.roles[0].layers = p.from_encoder ? 0 : f.at;
  cast.roles[0].prompt_only = true;
  cast.roles[0].encodes = p.from_encoder;
  if (p.from_encoder) cast.roles[0].model = ModelId(2);
  if (p.into_encoder) {
    cast.memories = {{.reader = 1, .encoder = 2}};
    cast.roles.push_back(encoder_role(ModelId(3)));
  }
  cast.roles.back().adapter = f.adapter;
  cast.conditioning = {{.from = 0,
                        .to = p.into_encoder ? 2 : 1,
                        .layer = p.from_encoder ? 0 : f.at,
                        .replace = f.replace,
                        .distinct_tokenizer = f.distinct_tokenizer}};
  return cast;
}

void use_pair(SequenceSpec& s, const Pair& p) {
  s.cast = std::make_shared<const Cast>(cast_of(p));
  s.encoder_tokens = p.source;
  s.conditioning_tokens = p.f.read;
  s.alignment = p.f.alignment;
  s.method = [](Gen g) { return llm_to_slm(g, {}); };
}

Pair between_decoders(int at) {
  Pair p;
  p.f.at = at;
  return p;
}

// Random requests of all kinds of pairs, some at once, against the reference (docs/reliability.md,
// oracles 8 and 9).
int64_t expect_equals_pair_reference(uint64_t first_seed, int boxes, bool tight) {
  int64_t preempted = 0;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(cases(boxes));
       ++seed) {
    Rng rng(seed);
    const BoxOptions options = random_boxes(rng, tight);
    Box box{options};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 8; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      const Pair p = random_pair_of(rng, box, s.prompt, options.limits.step_rows);
      if (chance(rng, 40)) {
        s.warp.processors =
            random_processors(rng, box.config().vocab_size, static_cast<int>(s.prompt.size()));
      }
      use_pair(s, p);
      Tokens expected = reference::llm_to_slm(box.config(1), p.f, s.prompt, s.warp, s.stops.eos,
                                              s.stops.max_new_tokens, p.source);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [recorder, expected] : all) {
      EXPECT_TRUE(recorder->ok()) << seed << ": " << recorder->end.status;
      EXPECT_EQ(recorder->tokens, expected) << seed;
      const MethodStats& got = recorder->end.stats;
      preempted += got.preemptions;
      if (got.preemptions == 0) EXPECT_EQ(got.large_passes, 1) << seed;
      for (const Emitted& e : recorder->emitted) {
        EXPECT_EQ(e.provenance, (Provenance{Source::kSmall, Source::kSmall}));
      }
      if (testing::Test::HasFailure()) return 0;
    }
    box.expect_idle();
  }
  return preempted;
}

TEST(LlmToSlm, EqualsTheReference) { expect_equals_pair_reference(0, 400, /*tight=*/false); }

TEST(LlmToSlm, EvictionsChangeNothing) {
  EXPECT_GT(expect_equals_pair_reference(10000, 300, /*tight=*/true), cases(200));
}

// The best of several beams of a conditioned small model, with any evictions.
TEST(LlmToSlm, BeamsEqualTheReference) {
  int64_t preempted = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    BoxOptions options = random_boxes(rng, /*tight=*/false);
    BeamParams a;
    a.writer = Role::kSmall;
    a.width = between(rng, 2, 3);
    a.length_penalty = 2 * fraction(rng);
    options.models[1].pool.pages = 9 * a.width;
    Box box{options};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 10; ++i) {
      SequenceSpec s = random_spec(box, rng, /*greedy=*/true);
      const Pair p = random_pair_of(rng, box, s.prompt, options.limits.step_rows);
      use_pair(s, p);
      s.width = a.width;
      s.method = [a](Gen g) { return beam(g, a); };
      Tokens expected = reference::beam(
          reference::conditioned(box.config(1), p.f, s.prompt, p.source),
          p.source.empty() ? Tokens() : s.prompt, a, s.stops.eos, s.stops.max_new_tokens);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [recorder, expected] : all) {
      ASSERT_TRUE(recorder->ok()) << seed << ": " << recorder->end.status;
      ASSERT_EQ(recorder->tokens, expected) << seed;
      preempted += recorder->end.stats.preemptions;
    }
    box.expect_idle();
  }
  EXPECT_GT(preempted, 20);
}

// Who writes behind a memory that was fed must not find the rows of one that was not, nor the other
// way round.
TEST(LlmToSlm, PrefixesOfAConditionedMemoryAreItsOwn) {
  BoxOptions o;
  o.models.resize(4);
  for (BoxModel& m : o.models) m.pool.values = 20;
  Box box{o};
  const Tokens prompt = {1, 2, 3, 4, 5, 6}, source = {3, 1, 2};
  const auto ask = [&](bool conditioned) {
    SequenceSpec s = box.spec(prompt, 6);
    Pair p;
    p.from_encoder = p.into_encoder = true;
    p.source = p.f.read = source;
    use_pair(s, p);
    if (!conditioned) {
      s.conditioning_tokens.clear();
      s.cast = std::make_shared<const Cast>(
          Cast{.roles = {{Role::kLarge, ModelId(1)}, encoder_role(ModelId(3))},
               .memories = {{.reader = 0, .encoder = 1}}});
      s.method = autoregressive;
    }
    const auto r = box.submit(std::move(s));
    box.pump();
    EXPECT_TRUE(r->ok()) << r->end.status;
    return r;
  };
  const auto bare = ask(false), conditioned = ask(true), again = ask(true), bare_again = ask(false);
  EXPECT_EQ(conditioned->end.stats.cached_tokens, 0);
  EXPECT_NE(conditioned->tokens, bare->tokens);
  EXPECT_EQ(again->tokens, conditioned->tokens);
  EXPECT_EQ(bare_again->tokens, bare->tokens);
  EXPECT_GT(bare_again->end.stats.cached_tokens, 0);
}

// Once its rows are read, the large model's memory is others'.
TEST(LlmToSlm, TheLargeModelGivesItsPagesBack) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(2, 2);
  o.models[0].pool.values = 20;
  Box box{o};
  SequenceSpec s = box.spec({1, 2, 3, 4, 5, 6, 7, 8, 9}, 20);
  use_pair(s, between_decoders(2));
  const auto r = box.submit(std::move(s));
  int after_first = 0;
  while (box.tick()) {
    if (r->tokens.size() < 2 || r->ends > 0) continue;
    ++after_first;
    EXPECT_EQ(box.pools(0).kv.used(), 0);
    EXPECT_EQ(box.pools(0).frontier.used(), 0);
    EXPECT_EQ(box.pools(0).values.used(), 0);
  }
  EXPECT_GT(after_first, 10);
  EXPECT_TRUE(r->ok());
}

// What cannot ever be read is refused, not waited for.
TEST(LlmToSlm, LongerPromptsThanItHasPlacesForAreRefused) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].pool.values = 8;
  Box box{o};
  for (const int n : {8, 9}) {
    SequenceSpec s = box.spec(Tokens(static_cast<size_t>(n), 3), 4);
    use_pair(s, between_decoders(4));
    const auto r = box.submit(std::move(s));
    box.pump();
    if (n == 8) {
      EXPECT_TRUE(r->ok()) << r->end.status;
    } else {
      EXPECT_EQ(r->end.status.code(), absl::StatusCode::kInvalidArgument);
    }
  }
  box.expect_idle();
}

// How it may draft: the settings of speculative decoding.
LlmToSlmParams random_drafting(Rng& rng) {
  LlmToSlmParams a;
  a.speculative = true;
  a.draft_tokens = between(rng, 1, 5);
  a.pace = static_cast<Pace>(between(rng, 0, 2));
  if (chance(rng, 40)) a.min_draft_probability = fraction(rng);
  if (chance(rng, 40)) a.draft_vocabulary = between(rng, 1, 12);
  a.drafts_text_ids = chance(rng, 75);
  if (chance(rng, 50)) a.num_masks = between(rng, 1, 2);
  return a;
}

// A small model conditioned on the large one's encoder states drafts for it: the answer is
// the large one's, and each reads the prompt once.
TEST(LlmToSlm, ConditionedDraftsAreExact) {
  int64_t drafted = 0, preempted = 0, by_masks = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    BoxOptions options = random_boxes(rng, /*tight=*/seed % 3 == 0);
    options.models[1].config.mask_accuracy = fraction(rng);
    Box box{options};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 6; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      if (!s.warp.greedy() && chance(rng, 50)) s.warp.temperature = 0.8F;
      const Fusion f = random_fusion(rng, box);
      Cast cast{.roles = two_models()};
      ConditioningEdge edge{.from = 0, .to = 1, .layer = f.at, .replace = f.replace};
      if (chance(rng, 50)) {  // the encoders' decoders read their rows, too
        s.encoder_tokens =
            random_tokens(rng, box, std::min(kLongestRead, options.limits.step_rows));
        cast.roles.push_back(encoder_role(ModelId(2)));
        cast.roles.push_back(encoder_role(ModelId(3)));
        cast.memories = {{.reader = 0, .encoder = 2}, {.reader = 1, .encoder = 3}};
        edge = {.from = 2, .to = 3, .replace = f.replace};
      }
      cast.roles[static_cast<size_t>(edge.to)].adapter = f.adapter;
      cast.conditioning = {edge};
      const LlmToSlmParams a = random_drafting(rng);
      if (a.num_masks) {
        cast.roles[1].mask_adapter = kAdapter;
        s.extra_rows = parallel_draft_rows(*a.num_masks);
      }
      s.cast = std::make_shared<const Cast>(std::move(cast));
      s.method = [a](Gen g) { return llm_to_slm(g, a); };
      Tokens expected = reference::autoregressive(box.config(0), s.prompt, s.warp, s.stops.eos,
                                                  s.stops.max_new_tokens, s.encoder_tokens);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [recorder, expected] : all) {
      ASSERT_TRUE(recorder->ok()) << seed << ": " << recorder->end.status;
      ASSERT_EQ(recorder->tokens, expected) << seed;
      drafted += recorder->end.stats.draft_tokens;
      preempted += recorder->end.stats.preemptions;
      for (const Emitted& e : recorder->emitted) {
        by_masks += e.provenance.proposed == Source::kMask;
      }
    }
    box.expect_idle();
  }
  EXPECT_GT(drafted, 1000);
  EXPECT_GT(preempted, 30);
  EXPECT_GT(by_masks, 20);
}

// Masks that are always right spare passes, and change neither tokens nor what is accepted.
TEST(LlmToSlm, ParallelDraftTokensSparePassesOfTheSmallModel) {
  const auto ask = [](int masks) {
    BoxOptions o;
    o.models.resize(2);
    o.models[0].pool.values = 20;
    o.models[1].config.mask_accuracy = 1;
    Box box{o};
    SequenceSpec s = box.spec({3, 1, 2}, 25);
    Cast cast{.roles = two_models()};
    cast.conditioning = {{.from = 0, .to = 1, .layer = 2}};
    cast.roles[1].adapter = AdapterId(0);
    if (masks > 0) cast.roles[1].mask_adapter = kAdapter;
    s.cast = std::make_shared<const Cast>(std::move(cast));
    s.extra_rows = parallel_draft_rows(masks);
    LlmToSlmParams a;
    a.speculative = true;
    a.draft_tokens = 4;
    a.num_masks = masks;
    s.method = [a](Gen g) { return llm_to_slm(g, a); };
    const auto r = box.submit(std::move(s));
    box.pump();
    EXPECT_TRUE(r->ok()) << r->end.status;
    EXPECT_EQ(r->tokens, box.greedy({3, 1, 2}, 25));
    return r->end.stats;
  };
  const MethodStats plain = ask(0), parallel = ask(1);
  EXPECT_EQ(parallel.large_passes, plain.large_passes);
  EXPECT_EQ(parallel.accept_lengths, plain.accept_lengths);
  EXPECT_LT(parallel.small_passes, plain.small_passes * 3 / 4);
}

}  // namespace
}  // namespace tandem::test
