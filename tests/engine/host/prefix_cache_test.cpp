// The prefix cache for clients: it changes the cached tokens of the usage, and nothing else.
#include "tests/engine/host/kit.h"

namespace tandem::testing {
namespace {

GenerateRequest request(const std::string& client, const std::string& text) {
  GenerateRequest r;
  r.model = "pair";
  r.client = client;
  r.prompt = text;
  r.stopping.max_new_tokens = 8;
  r.stopping.ignore_eos = true;
  return r;
}

const std::string kText = "A beginning that several requests have in common, and more";

struct Answer {
  std::vector<Token> ids;
  int64_t cached = 0;
};

Answer generate(Engine& engine, const GenerateRequest& r) {
  const auto sink = std::make_shared<Recorder>();
  engine.submit(r, sink);
  EXPECT_TRUE(sink->wait().ok());
  EXPECT_EQ(sink->end().usage.cached_tokens, sink->end().stats.cached_tokens);
  return {sink->ids(), sink->end().usage.cached_tokens};
}

TEST(PrefixCache, UsageReportsCachedTokens) {
  const auto engine = make_engine();
  const Answer first = generate(*engine, request("a", kText));
  const Answer again = generate(*engine, request("b", kText));
  EXPECT_EQ(first.cached, 0) << "warming up leaves nothing behind";
  EXPECT_EQ(again.cached, static_cast<int64_t>((kText.size() - 1) / 16 * 16));
  EXPECT_EQ(again.ids, first.ids);
  const Metrics& m = engine->metrics();
  EXPECT_EQ(m.prefix_cache_hits.value(), 2 * again.cached) << "of both models of the pair";
  EXPECT_GE(m.prefix_cache_queries.value(), 2 * again.cached);
  const Answer own = generate(*engine, request("a", kText));
  EXPECT_EQ(own.cached, static_cast<int64_t>(kText.size() - 1)) << "also parts of own pages";
}

TEST(PrefixCache, ClientsSeeOnlyTheirOwnWhereTheDeploymentSaysSo) {
  EngineConfig config = fake_engine_config();
  config.deployments[0].prefix_cache_per_client = true;
  const auto engine = make_engine(config);
  const Answer first = generate(*engine, request("a", kText));
  const Answer other = generate(*engine, request("b", kText));
  const Answer again = generate(*engine, request("a", kText));
  EXPECT_EQ(other.cached, 0);
  EXPECT_GT(again.cached, 0);
  EXPECT_EQ(other.ids, first.ids);
  EXPECT_EQ(again.ids, first.ids);
}

TEST(PrefixCache, CanBeSwitchedOff) {
  EngineConfig config = fake_engine_config();
  for (ModelConfig& m : config.models) m.prefix_cache = false;
  const auto engine = make_engine(config);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(generate(*engine, request("a", kText)).cached, 0);
  EXPECT_EQ(engine->metrics().prefix_cache_queries.value(), 0);
}

TEST(PrefixCache, ADevicesBudgetIsDividedBetweenItsModels) {
  EngineConfig config = fake_engine_config();
  config.devices[0].memory_bytes = 1 << 16;
  const auto engine = make_engine(config);
  const Metrics& m = engine->metrics();
  ASSERT_EQ(m.models.size(), 2U);
  EXPECT_EQ(m.models[0].kv_pages_total.value(), m.models[1].kv_pages_total.value());
  const double bytes = m.models[0].kv_bytes.value() + m.models[1].kv_bytes.value();
  EXPECT_LE(bytes, 1 << 16);
  EXPECT_GT(bytes, (1 << 16) * 0.9);
}

#ifdef TANDEM_WITH_TORCH
// With weights: cached rows are bit-identical to computed ones.
TEST(PrefixCache, CachedRowsAreBitIdentical) {
  std::vector<Token> prompt;
  for (int i = 0; i < 104; ++i) prompt.push_back((i * 37 + 11) % 4096);
  const auto engine_of = [](DType dtype, bool prefix_cache) {
    EngineConfig config = testing::real_engine_config(
        "model", std::string(TANDEM_SOURCE_DIR) + "/models/code-small", dtype);
    config.models[0].prefix_cache = prefix_cache;
    return make_engine(config);
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto with = engine_of(dtype, true), without = engine_of(dtype, false);
    GenerateRequest r = request_for(prompt, 20);
    r.model = "model";
    r.top_logprobs = 3;
    const auto expected = run(*without, r);
    for (const int64_t cached : {0, 103}) {
      const auto got = run(*with, r);
      EXPECT_EQ(got->end().usage.cached_tokens, cached);
      ASSERT_EQ(got->ids(), expected->ids());
      for (size_t t = 0; t < got->tokens().size(); ++t) {
        EXPECT_EQ(got->tokens()[t].logprob, expected->tokens()[t].logprob);
        EXPECT_EQ(got->tokens()[t].top, expected->tokens()[t].top);
      }
    }
  }
}
#endif

}  // namespace
}  // namespace tandem::testing
