// Methods are declared by a deployment's file, and compiled when its models are loaded.
#include "engine/host/methods/compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/host/deployment.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

DeploymentConfig pair_config() {
  DeploymentConfig config;
  config.name = "d";
  config.large = "large";
  config.small = "small";
  return config;
}

std::vector<std::string> names(const std::vector<DeclaredMethod>& methods) {
  std::vector<std::string> out;
  for (const DeclaredMethod& m : methods) out.push_back(m.entry->name);
  return out;
}

TEST(DeclaredMethods, AreThoseThatTheFileCanRun) {
  DeploymentConfig config = pair_config();
  EXPECT_THAT(names(declared_methods(config)),
              ElementsAre("autoregressive", "speculative", "ngram", "bild"));
  config.methods["llm_to_slm"] = {{"adapter", std::string("projector")}};
  EXPECT_EQ(names(declared_methods(config)).back(), "llm_to_slm");
  config.small.clear();
  EXPECT_THAT(names(declared_methods(config)), ElementsAre("autoregressive", "ngram"));
}

TEST(DeclaredMethods, DescribeTheUseOfHiddenStates) {
  EngineConfig config;
  config.deployments = {pair_config()};
  EXPECT_FALSE(hidden_states_of(config)["large"].condition);
  config.deployments[0].methods["llm_to_slm"] = {{"adapter", std::string("projector")}};
  EXPECT_TRUE(hidden_states_of(config)["large"].condition);
  EXPECT_FALSE(hidden_states_of(config)["small"].condition);
  EXPECT_FALSE(hidden_states_of(config)["large"].retain_top);
  config.deployments[0].methods["ppd"] = {{"exit_layer", int64_t{2}},
                                          {"workers", std::vector<std::string>{"worker"}}};
  EXPECT_TRUE(hidden_states_of(config)["worker"].retain_top);
}

class CompiledMethods : public ::testing::Test {
 protected:
  CompiledMethods() {
    large_.id = ModelId(0);
    small_.id = ModelId(1);
    for (LoadedModel* m : {&large_, &small_}) {
      m->shape.batch_invariant = true;
      m->shape.max_positions = 512;
      m->shape.layers = 4;
      m->pool.pages = 64;
      m->pool.page_rows = 16;
    }
    large_.config.name = "large";
    small_.config.name = "small";
  }

  Deployment deployment(const DeploymentConfig& config) {
    Deployment d;
    d.name = config.name;
    d.config = config;
    d.large = &large_;
    d.small = &small_;
    d.models = {{"large", &large_}, {"small", &small_}};
    d.context_length = 512;
    return d;
  }

  LoadedModel large_, small_;
};

TEST_F(CompiledMethods, BothValuesOfASwitchAreCompiled) {
  DeploymentConfig config = pair_config();
  config.methods["bild"] = {{"early_exit_layer", int64_t{2}}};
  Deployment d = deployment(config);
  compile_methods(declared_methods(config), &d);
  const CompiledMethod& bild = d.compiled.at("bild");
  ASSERT_EQ(bild.variants.size(), 2U);
  EXPECT_EQ(bild.variants[0].cast->roles[1].model, small_.id);
  EXPECT_EQ(bild.variants[1].cast->roles[1].model, large_.id);
  const auto small_of = [&](const Settings& parameters) {
    const auto plan = plan_choice(d, {bild.entry, parameters}, true);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->cast->roles[1];
  };
  EXPECT_EQ(small_of({}).model, small_.id);
  EXPECT_EQ(small_of({{"early_exit", true}}).model, large_.id);
  EXPECT_EQ(small_of({{"early_exit", true}}).layers, 2);
  // Other parameters change the roles too; these are compiled for the request.
  EXPECT_EQ(small_of({{"early_exit", true}, {"max_small_run", int64_t{7}}}).frontier_rows, 8);
  EXPECT_EQ(bild.variants.size(), 2U);
}

// Parallel draft tokens are a number among the parameters: zero needs no adapter.
TEST_F(CompiledMethods, ParametersChangeTheMasksOfARole) {
  small_.shape.adapters = {{"masks", 3, 0, 0}};
  DeploymentConfig config = pair_config();
  config.methods["speculative"] = {{"adapter", std::string("masks")}};
  Deployment d = deployment(config);
  compile_methods(declared_methods(config), &d);
  const MethodEntry* const entry = find_method("speculative");
  const auto masks_of = [&](const Settings& parameters) {
    const auto plan = plan_choice(d, {entry, parameters}, true);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->cast->roles[1].mask_adapter;
  };
  EXPECT_EQ(masks_of({}), AdapterId(0));
  EXPECT_FALSE(masks_of({{"num_masks", int64_t{0}}}).valid());
  EXPECT_EQ(masks_of({{"num_masks", int64_t{3}}}), AdapterId(0));
  EXPECT_EQ(plan_choice(d, {entry, {{"num_masks", int64_t{4}}}}, true).status().message(),
            "speculative.num_masks: 4; allowed: 1 to 3, the masks of masks");
}

// A pair with distinct tokenizers offers only the conditioned method, and cannot verify its drafts.
TEST_F(CompiledMethods, AConditionedPairOffersOnlyThat) {
  AdapterShape projector;
  projector.name = "projector";
  projector.source = 8;
  projector.layer = 2;
  small_.shape.adapters = {projector};
  DeploymentConfig config = pair_config();
  config.methods["llm_to_slm"] = {{"adapter", std::string("projector")}};
  Deployment d = deployment(config);
  d.share_tokens = false;
  d.conditioning = ConditionedMethod{"llm_to_slm"};
  compile_methods(declared_methods(config), &d);
  EXPECT_EQ(d.offered(), "autoregressive, llm_to_slm");
  EXPECT_EQ(d.conditioning->adapter, &small_.shape.adapters[0]);
  const MethodEntry* const entry = find_method("llm_to_slm");
  const auto plan = plan_choice(d, {entry, {}}, true);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->reader, "large");
  EXPECT_EQ(plan->writer, "small");
  EXPECT_EQ(plan->cast->roles[0].layers, 2);
  const auto verified = plan_choice(d, {entry, {{"speculative", true}}}, true);
  EXPECT_EQ(verified.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem
