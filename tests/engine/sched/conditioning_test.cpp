// What conditioned requests reserve, and the dependencies of their rows. Their passes are tested
// with the methods (decode/llm_to_slm_test, decode/source_test).
#include "engine/sched/conditioning.h"

#include <gtest/gtest.h>

#include "engine/sched/sequence_parts.h"
#include "tests/engine/sched/quiet_host.h"

namespace tandem::test {
namespace {

const std::vector<Token> kPrompt = {1, 2, 3, 4, 5, 6};

// The large model runs the prompt through two of four layers and conditions the small one.
Cast conditioned() {
  Cast cast{.roles = {{Role::kLarge, ModelId(0), 2}, {Role::kSmall, ModelId(1)}},
            .conditioning = {{.from = 0, .to = 1, .layer = 2}}};
  cast.roles[0].prompt_only = true;
  cast.roles[1].adapter = AdapterId(0);
  return cast;
}

Cast with_encoder() {
  return {.roles = {{Role::kLarge, ModelId(0)}, encoder_role(ModelId(1))},
          .memories = {{.reader = 0, .encoder = 1}}};
}

SequenceSpec spec_of(Cast cast) {
  SequenceSpec spec;
  spec.prompt = kPrompt;
  spec.cast = std::make_shared<const Cast>(std::move(cast));
  return spec;
}

struct Round {
  explicit Round(SequenceSpec spec) : parts(std::move(spec), nullptr, &host) {
    parts.caches.open();
  }
  void begin(std::vector<Need> needs) {
    parts.reservation.begin_round(needs, parts.output.tokens());
    ASSERT_TRUE(parts.reservation.can_grant());
    parts.reservation.grant(&host);
  }
  const ModelPools& pools(int model) { return *host.pools(ModelId(model)); }

  QuietHost host{QuietHost::Models(2)};
  SequenceParts parts;
};

TEST(Conditioning, PlainRequestsHaveNone) {
  Round r(spec_of({.roles = {{Role::kLarge, ModelId(0)}, {Role::kSmall, ModelId(1)}}}));
  EXPECT_EQ(r.parts.conditioning, nullptr);
  EXPECT_EQ(prefix_dependencies(r.parts.spec, 0), "");
}

TEST(Conditioning, ARoundReservesTheSourceAndItsHiddenRows) {
  Round r(spec_of(conditioned()));
  r.begin({{r.parts.caches.stage(Role::kSmall, 0), 6}});
  EXPECT_EQ(r.pools(0).kv.used(), 2);
  EXPECT_EQ(r.pools(0).frontier.used(), 2);
  EXPECT_EQ(r.pools(0).values.used(), 6);
  EXPECT_EQ(r.pools(1).kv.used(), 2);
  EXPECT_EQ(r.pools(1).values.used(), 0);
}

TEST(Conditioning, ASourceWithItsOwnTokensLeavesAllOfThem) {
  SequenceSpec spec = spec_of(conditioned());
  spec.conditioning_tokens = {7, 8, 9};
  spec.alignment = {0, 0, 1, 1, 2, 2};
  Round r(std::move(spec));
  r.begin({{r.parts.caches.stage(Role::kSmall, 0), 6}});
  EXPECT_EQ(r.pools(0).kv.used(), 1);
  EXPECT_EQ(r.pools(0).values.used(), 3);
}

TEST(Conditioning, ARoundReservesTheMemoryOfItsReader) {
  SequenceSpec spec = spec_of(with_encoder());
  spec.encoder_tokens = {1, 2, 3, 4, 5};
  Round r(std::move(spec));
  r.begin({{r.parts.caches.stage(Role::kLarge, 0), 1}});
  EXPECT_EQ(r.pools(0).kv.used(), 1);
  EXPECT_EQ(r.pools(1).kv.used(), 2);
}

TEST(Conditioning, DependenciesNameTheirTokensAndModels) {
  const SequenceSpec spec = spec_of(conditioned());
  EXPECT_EQ(prefix_dependencies(spec, 0), "");
  const std::string key = prefix_dependencies(spec, 1);
  EXPECT_NE(key, "");
  SequenceSpec other = spec;
  other.conditioning_tokens = {7, 8, 9};
  EXPECT_NE(prefix_dependencies(other, 1), key);
  Cast replaced = conditioned();
  replaced.conditioning[0].replace = true;
  EXPECT_NE(prefix_dependencies(spec_of(replaced), 1), key);
  SequenceSpec encoded = spec_of(with_encoder());
  encoded.encoder_tokens = {1, 2};
  const std::string memory = prefix_dependencies(encoded, 0);
  encoded.encoder_tokens = {1, 3};
  EXPECT_NE(prefix_dependencies(encoded, 0), memory);
}

}  // namespace
}  // namespace tandem::test
