// Drafts from the texts of earlier requests: fewer passes, the same tokens, and each client's own.
#include "engine/decode/text_history.h"

#include "tests/engine/host/kit.h"

namespace tandem::testing {
namespace {

struct Answer {
  std::vector<Token> ids;
  int64_t passes = 0;
};

Answer generate(Engine& engine, const std::string& client, const std::string& method) {
  GenerateRequest r;
  r.model = "pair";
  r.client = client;
  r.method = method;
  r.prompt = "What is repeated";
  r.stopping.max_new_tokens = 48;
  r.stopping.ignore_eos = true;
  if (method == "ngram") r.parameters = {{"draft_tokens", int64_t{16}}};
  if (method == "speculative") {
    r.parameters = {{"draft_tokens", int64_t{64}}, {"pace", std::string("PACE_FASTEST")}};
  }
  const auto sink = std::make_shared<Recorder>();
  engine.submit(r, sink);
  EXPECT_TRUE(sink->wait().ok());
  return {sink->ids(), sink->end().stats.large_passes};
}

TEST(History, ARequestIsDraftedFromEarlierOnes) {
  const auto engine = make_engine(fake_engine_config());
  const Answer first = generate(*engine, "a", "ngram");
  const Answer again = generate(*engine, "b", "ngram");
  EXPECT_LT(again.passes, first.passes / 2) << "clients share prefixes, and texts";
  EXPECT_EQ(again.ids, first.ids);
}

TEST(History, OfAnyMethod) {
  const auto engine = make_engine(fake_engine_config());
  const Answer plain = generate(*engine, "a", "autoregressive");
  const Answer again = generate(*engine, "a", "ngram");
  EXPECT_LT(again.passes, plain.passes / 4);
  EXPECT_EQ(again.ids, plain.ids);
}

// Long copies have more drafts than the small model makes.
TEST(History, SpeculativeSamplingLooksUpLongMatches) {
  const auto engine = make_engine(fake_engine_config());
  const Answer plain = generate(*engine, "a", "autoregressive");
  const Answer first = generate(*engine, "a", "speculative");
  const Answer again = generate(*engine, "a", "auto");
  EXPECT_LE(first.passes, 7) << "for 48 tokens";
  EXPECT_LE(again.passes, 7);
  EXPECT_EQ(first.ids, plain.ids);
  EXPECT_EQ(again.ids, plain.ids);
}

TEST(History, ClientsHaveTheirOwnWhereTheDeploymentSaysSo) {
  EngineConfig config = fake_engine_config();
  config.deployments[0].prefix_cache_per_client = true;
  const auto engine = make_engine(config);
  const Answer first = generate(*engine, "a", "ngram");
  const Answer other = generate(*engine, "b", "ngram");
  const Answer again = generate(*engine, "a", "ngram");
  EXPECT_EQ(other.passes, first.passes);
  EXPECT_LT(again.passes, first.passes / 2);
  EXPECT_EQ(other.ids, first.ids);
  EXPECT_EQ(again.ids, first.ids);
}

TEST(History, CanBeSwitchedOff) {
  EngineConfig config = fake_engine_config();
  for (DeploymentConfig& d : config.deployments) d.history_tokens = 0;
  const auto engine = make_engine(config);
  const Answer first = generate(*engine, "a", "ngram");
  EXPECT_EQ(generate(*engine, "a", "ngram").passes, first.passes);
}

}  // namespace
}  // namespace tandem::testing
