#include "engine/host/methods/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace tandem {
namespace {

using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A compiled deployment of models without weights.
class Plans : public ::testing::Test {
 protected:
  Plans() {
    large_.id = ModelId(0);
    small_.id = ModelId(1);
    large_.config.device = "cpu:0";
    for (LoadedModel* m : {&large_, &small_}) {
      m->shape.batch_invariant = true;
      m->shape.max_positions = 512;
      m->shape.layers = 4;
      m->pool.pages = 64;
      m->pool.page_rows = 16;
    }
  }

  Deployment deployment(bool with_small, DeploymentConfig config = {},
                        const Methods& methods = all_methods()) const {
    Deployment d;
    d.name = config.name = "d";
    config.large = "large";
    config.small = with_small ? "small" : "";
    d.large = &large_;
    d.small = with_small ? &small_ : nullptr;
    d.models = {{"large", &large_}, {"small", &small_}};
    d.config = std::move(config);
    d.context_length = 512;
    d.max_new_tokens = 511;
    d.default_max_new_tokens = 16;
    compile_methods(declared_methods(d.config, methods), &d);
    return d;
  }

  LoadedModel large_, small_;
};

GenerateRequest asking(const std::string& method, Settings parameters = {}) {
  GenerateRequest request;
  request.method = method;
  request.parameters = std::move(parameters);
  return request;
}
GenerateRequest speculative(Settings parameters) {
  return asking("speculative", std::move(parameters));
}
GenerateRequest ngram(Settings parameters) { return asking("ngram", std::move(parameters)); }
GenerateRequest bild(Settings parameters) { return asking("bild", std::move(parameters)); }
GenerateRequest beams(int64_t width) {
  GenerateRequest request = asking(kAutoregressive);
  request.beam = {{"width", width}};
  return request;
}

std::string parameters(const GenerateRequest& request) {
  std::string out;
  for (const Setting& s : request.parameters) out += s.name + " " + setting_text(s.value) + " ";
  return out;
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

std::vector<std::string> names(const std::vector<MethodInfo>& methods) {
  std::vector<std::string> out;
  for (const MethodInfo& m : methods) out.push_back(m.method);
  return out;
}

std::vector<std::pair<Role, int>> roles(const MethodPlan& plan) {
  std::vector<std::pair<Role, int>> out;
  for (const CastRole& r : plan.cast->roles) {
    out.emplace_back(r.role, r.layers == 0 ? static_cast<int>(r.model.index()) : 100 + r.layers);
  }
  return out;
}

TEST_F(Plans, RangeErrorsNameFieldValueAndRange) {
  const auto status_of = [](const char* method, Settings asked) {
    return check_parameters(*find_method(method), asked);
  };
  const struct {
    absl::Status status;
    const char* text;
  } cases[] = {
      {status_of("speculative", {{"draft_tokens", 0}}),
       "speculative.draft_tokens: 0; allowed: [1, 64]"},
      {status_of("speculative", {{"draft_tokens", 1'000'000}}),
       "speculative.draft_tokens: 1000000; allowed: [1, 64]"},
      {status_of("speculative", {{"draft_tokens", std::numeric_limits<int64_t>::min()}}),
       "speculative.draft_tokens: -9223372036854775808; allowed: [1, 64]"},
      {status_of("speculative", {{"min_draft_probability", -0.1}}),
       "speculative.min_draft_probability: -0.1; allowed: [0, 1]"},
      {status_of("speculative", {{"acceptance", 3}}),
       "speculative.acceptance: 3; allowed: ACCEPTANCE_MATCH, ACCEPTANCE_RATIO"},
      {status_of("speculative", {{"min_draft_probability", kNan}}),
       "speculative.min_draft_probability: nan; allowed: [0, 1]"},
      {status_of("ngram", {{"max_ngram", 65}}), "ngram.max_ngram: 65; allowed: [1, 64]"},
      {status_of("bild", {{"fallback_threshold", 2.5}}),
       "bild.fallback_threshold: 2.5; allowed: [0, 2]"},
      {status_of("bild", {{"fallback_threshold", kNan}}),
       "bild.fallback_threshold: nan; allowed: [0, 2]"},
      {status_of("bild", {{"rollback_threshold", -1}}),
       "bild.rollback_threshold: -1; allowed: [0, inf]"},
      {status_of("bild", {{"rollback_threshold", kNan}}),
       "bild.rollback_threshold: nan; allowed: [0, inf]"},
      {status_of("bild", {{"max_small_run", -1}}), "bild.max_small_run: -1; allowed: [0, 4096]"},
      {status_of("bild", {{"verify_eos", 1}}), "bild.verify_eos: 1; allowed: true, false"},
      {status_of("bild", {{"window", 65}}), "bild.window: 65; allowed: [1, 64]"},
      // A field of the deployment.
      {status_of("bild", {{"early_exit_layer", 3}}),
       "bild.early_exit_layer: 3; allowed: unset (parameters are fallback_threshold, "
       "rollback_threshold, max_small_run, verify_eos, num_masks, early_exit, window)"},
      {check_parameters(beam_entry(), {{"width", 0}}), "beam.width: 0; allowed: [1, 16]"},
      {check_parameters(beam_entry(), {{"width", 17}}), "beam.width: 17; allowed: [1, 16]"},
      {check_parameters(beam_entry(), {{"length_penalty", kInf}}),
       "beam.length_penalty: inf; allowed: [-10, 10]"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(message(c.status), c.text);
  }
  EXPECT_TRUE(status_of("bild", {{"fallback_threshold", 0}, {"rollback_threshold", kInf}}).ok());
  EXPECT_TRUE(check_parameters(beam_entry(), {{"width", 16}, {"length_penalty", -10}}).ok());
  // plan_method() checks them too.
  EXPECT_EQ(message(plan_method(deployment(true), bild({{"window", 0}}), true, 1).status()),
            "bild.window: 0; allowed: [1, 64]");
  EXPECT_EQ(
      message(plan_method(deployment(true), speculative({{"draft_tokens", 65}}), true, 1).status()),
      "speculative.draft_tokens: 65; allowed: [1, 64]");
}

TEST_F(Plans, OffersFollowFromTheDeployment) {
  EXPECT_THAT(names(deployment(false).methods), ElementsAre("ngram", "autoregressive"));
  EXPECT_THAT(names(deployment(true).methods),
              ElementsAre("speculative", "autoregressive", "ngram", "bild"));
  DeploymentConfig config;
  config.methods["bild"] = {{"early_exit_layer", 2}};
  EXPECT_THAT(names(deployment(false, config).methods),
              ElementsAre("ngram", "autoregressive", "bild"));
  // The default comes first.
  config.default_method = "bild";
  EXPECT_THAT(names(deployment(false, config).methods),
              ElementsAre("bild", "autoregressive", "ngram"));
  config.default_method = "speculative";
  EXPECT_THAT(names(deployment(true, config).methods),
              ElementsAre("speculative", "autoregressive", "ngram", "bild"));
}

TEST_F(Plans, OffersHaveTheContractAndParametersOfARequestWithoutParameters) {
  const Deployment plain = deployment(true);
  const MethodInfo& speculative = *plain.offers("speculative");
  EXPECT_EQ(speculative.greedy, Contract::kExact);
  EXPECT_EQ(speculative.sampled, Contract::kExact);
  EXPECT_EQ(speculative.parameters, (Settings{{"draft_tokens", 4},
                                              {"pace", "PACE_FIXED"},
                                              {"min_draft_probability", 0.0},
                                              {"adapter", ""},
                                              {"acceptance", "ACCEPTANCE_MATCH"}}));
  const MethodInfo& bild = *plain.offers("bild");
  EXPECT_EQ(bild.greedy, Contract::kLossy);
  EXPECT_EQ(bild.sampled, Contract::kLossy);
  // As short decimals, and without `window`, which has no default.
  EXPECT_EQ(bild.parameters, (Settings{{"fallback_threshold", 0.6},
                                       {"rollback_threshold", 5.0},
                                       {"max_small_run", 10},
                                       {"verify_eos", true},
                                       {"adapter", ""},
                                       {"early_exit", false},
                                       {"early_exit_layer", 0}}));

  DeploymentConfig config;
  config.methods["bild"] = {{"rollback_threshold", 0.69}, {"early_exit_layer", 1}};
  config.methods["ngram"] = {{"draft_tokens", 9}};
  EXPECT_EQ(deployment(true, config).offers("bild")->greedy, Contract::kExact);
  const auto of = [&](bool with_small, const char* method, const char* field) {
    return *find_setting(deployment(with_small, config).offers(method)->parameters, field);
  };
  EXPECT_EQ(of(true, "bild", "early_exit"), SettingValue(false));
  EXPECT_EQ(of(false, "bild", "early_exit"), SettingValue(true));
  EXPECT_EQ(of(false, "ngram", "draft_tokens"), SettingValue(int64_t{9}));
}

TEST_F(Plans, AnErrorListsTheOfferedMethods) {
  DeploymentConfig exits;
  exits.methods["bild"] = {{"early_exit_layer", 2}};
  const struct {
    Deployment deployment;
    GenerateRequest request;
    const char* text;
  } cases[] = {
      {deployment(false), bild({}), "method: bild; offered by model \"d\": ngram, autoregressive"},
      {deployment(false), speculative({}),
       "method: speculative; offered by model \"d\": ngram, autoregressive"},
      {deployment(true), asking("ppd"),
       "method: ppd; offered by model \"d\": speculative, autoregressive, ngram, bild"},
      {deployment(true), bild({{"early_exit", true}}),
       "bild.early_exit: true; offered by model \"d\": false (its deployment names no "
       "bild.early_exit_layer)"},
      {deployment(false, exits), bild({{"early_exit", false}}),
       "bild.early_exit: false; offered by model \"d\": true (there is no small model)"},
  };
  for (const auto& c : cases) {
    const auto plan = plan_method(c.deployment, c.request, true, 1);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << c.text;
    EXPECT_EQ(message(plan.status()), c.text);
  }
}

TEST_F(Plans, ModelsInTheirRoles) {
  DeploymentConfig config;
  config.methods["bild"] = {{"early_exit_layer", 2}};
  const Deployment d = deployment(true, config);
  const auto of = [&](const GenerateRequest& r) { return roles(*plan_method(d, r, true, 1)); };
  const std::pair large(Role::kLarge, 0), small(Role::kSmall, 1), lower(Role::kSmall, 102);
  EXPECT_THAT(of(asking(kAutoregressive)), ElementsAre(large));
  EXPECT_THAT(of(beams(4)), ElementsAre(large));
  EXPECT_THAT(of(speculative({})), ElementsAre(large, small));
  EXPECT_THAT(of(ngram({})), ElementsAre(large));
  EXPECT_THAT(of(bild({})), ElementsAre(large, small));
  EXPECT_THAT(of(bild({{"early_exit", true}})), ElementsAre(large, lower));
  EXPECT_EQ(plan_method(d, bild({{"early_exit", true}}), true, 1)->cast->roles[1].model, large_.id);
}

// A deployment with every method and the adapter "sql".
class AdaptedPlans : public Plans {
 protected:
  AdaptedPlans() {
    AdapterShape masks, projector;
    masks.name = "masks";
    masks.masks = 3;
    projector.name = "projector";
    projector.source = 8;
    projector.layer = 2;
    large_.shape.adapters = {masks};
    small_.shape.adapters = {projector};
    large_.pool.frontier_pages = small_.pool.frontier_pages = 64;
  }

  Deployment adapted(DeploymentConfig config = {}) const {
    config.methods["bild"] = {{"early_exit_layer", 2}};
    config.methods["bita"] = {{"adapter", std::string("masks")}};
    config.methods["ppd"] = {{"exit_layer", 2}, {"workers", std::vector<std::string>{"small"}}};
    config.methods["llm_to_slm"] = {{"adapter", std::string("projector")}};
    Deployment d = deployment(true, std::move(config));
    d.adapters->pin({.name = "sql", .id = LoraId(3)});
    return d;
  }
  static GenerateRequest with_sql(GenerateRequest request) {
    request.adapter = "sql";
    return request;
  }
};

TEST_F(AdaptedPlans, TheLargeModelHasTheAdapterUnderTheSameContract) {
  const Deployment d = adapted();
  for (const GenerateRequest& request :
       {asking(kAutoregressive), beams(4), speculative({}), ngram({}), bild({}),
        bild({{"early_exit", true}}), asking("bita"), asking("llm_to_slm", {{"speculative", true}}),
        asking(kAuto)}) {
    const auto base = plan_method(d, request, true, 1);
    const auto plan = plan_method(d, with_sql(request), true, 1);
    ASSERT_TRUE(base.ok() && plan.ok()) << request.method << plan.status();
    EXPECT_EQ(plan->method, base->method);
    EXPECT_EQ(plan->contract, base->contract) << request.method;
    ASSERT_EQ(plan->cast->roles.size(), base->cast->roles.size());
    for (const CastRole& role : base->cast->roles) EXPECT_EQ(role.lora, LoraId());
    for (const CastRole& role : plan->cast->roles) {
      EXPECT_EQ(role.lora, role.model == large_.id ? LoraId(3) : LoraId()) << request.method;
    }
    EXPECT_EQ(plan->cast->has_edges(), base->cast->has_edges());
  }
}

TEST_F(AdaptedPlans, MethodsThatCannotUseAnAdapterAreRefusedByName) {
  const Deployment d = adapted();
  const std::string others =
      "; offered with an adapter: speculative, autoregressive, ngram, bild, bita";
  const struct {
    GenerateRequest request;
    std::string text;
  } cases[] = {
      {asking("ppd"),
       "method: ppd with adapter \"sql\": its workers run the large model's layers without the "
       "adapter"},
      {asking("llm_to_slm"),
       "method: llm_to_slm with adapter \"sql\": its projector was trained for hidden states "
       "without an adapter"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(plan_method(d, c.request, true, 1).ok());
    const auto plan = plan_method(d, with_sql(c.request), true, 1);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(message(plan.status()), c.text + others);
  }
}

TEST_F(AdaptedPlans, OffersSayWhichMethodsRefuseThem) {
  std::vector<std::string> refusing;
  for (const MethodInfo& m : adapted().methods) {
    if (m.refuses_adapters) refusing.push_back(m.method);
  }
  EXPECT_THAT(refusing, ElementsAre("ppd", "llm_to_slm"));
}

TEST_F(AdaptedPlans, AutoAndRemediesPassOverThem) {
  for (const char* refused : {"ppd", "llm_to_slm"}) {
    DeploymentConfig config;
    config.default_method = refused;
    const Deployment d = adapted(config);
    EXPECT_EQ(plan_method(d, asking(kAuto), true, 1)->method, refused);
    const auto plan = plan_method(d, with_sql(asking(kAuto)), true, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_NE(plan->method, refused);
    EXPECT_EQ(plan->contract, Contract::kExact);
  }
  GenerateRequest lossy = with_sql(bild({{"rollback_threshold", 5.0}}));
  lossy.require_contract = Contract::kExact;
  const std::string why = message(plan_method(adapted(), lossy, true, 1).status());
  EXPECT_NE(why.find("method bita"), std::string::npos) << why;
  EXPECT_EQ(why.find("method ppd"), std::string::npos) << why;
}

TEST_F(Plans, ExactIsReportedOnlyIfItHolds) {
  const Deployment d = deployment(true);
  const struct {
    GenerateRequest request;
    bool greedy;
    Contract contract;
  } cases[] = {
      {asking(kAutoregressive), true, Contract::kExact},
      {asking(kAutoregressive), false, Contract::kExact},
      {beams(1), true, Contract::kExact},
      {beams(2), true, Contract::kLossy},
      {speculative({}), true, Contract::kExact},
      {speculative({}), false, Contract::kExact},
      {speculative({{"acceptance", "ACCEPTANCE_RATIO"}}), false, Contract::kDistribution},
      {speculative({{"acceptance", "ACCEPTANCE_RATIO"}}), true, Contract::kExact},
      {ngram({}), false, Contract::kExact},
      {bild({}), true, Contract::kLossy},
      {bild({{"rollback_threshold", 0.69}}), true, Contract::kExact},
      {bild({{"rollback_threshold", 0}}), true, Contract::kExact},
      {bild({{"rollback_threshold", 0.69}}), false, Contract::kLossy},
      {bild({{"rollback_threshold", std::log(2.0)}}), true, Contract::kLossy},
      {bild({{"rollback_threshold", 0.69}, {"verify_eos", false}}), true, Contract::kLossy},
      {bild({{"rollback_threshold", 0.69}, {"window", 4}}), true, Contract::kExact},
      {bild({{"fallback_threshold", 1.5}}), true, Contract::kExact},
      {bild({{"fallback_threshold", 1.5}}), false, Contract::kExact},
      {bild({{"fallback_threshold", 1}}), true, Contract::kLossy},
      {bild({{"fallback_threshold", 1.5}, {"window", 4}}), true, Contract::kLossy},
      {bild({{"rollback_threshold", 1e300}}), true, Contract::kLossy},
  };
  for (const auto& c : cases) {
    const auto plan = plan_method(d, c.request, c.greedy, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->contract, c.contract)
        << c.request.method << " greedy " << c.greedy << " " << parameters(c.request);
    EXPECT_EQ(plan->method, c.request.method);
  }
}

TEST_F(Plans, AnUnsatisfiedContractListsRemedies) {
  const Deployment d = deployment(true);
  const struct {
    GenerateRequest request;
    Contract required;
    bool greedy;
    const char* text;
  } cases[] = {
      {bild({}), Contract::kExact, true,
       "require_contract: EXACT; bild gives LOSSY; needed: bild.rollback_threshold 0.69, or "
       "bild.fallback_threshold 1.01, or method speculative, or method autoregressive, or method "
       "ngram"},
      {bild({{"rollback_threshold", 0.5}, {"verify_eos", false}}), Contract::kExact, true,
       "require_contract: EXACT; bild gives LOSSY; needed: bild.verify_eos true, or "
       "bild.fallback_threshold 1.01, or method speculative, or method autoregressive, or method "
       "ngram"},
      // A fallback threshold above 1 does not help with a window.
      {bild({{"rollback_threshold", 0.7}, {"verify_eos", false}, {"window", 3}}),
       Contract::kDistribution, true,
       "require_contract: DISTRIBUTION; bild gives LOSSY; needed: bild.rollback_threshold 0.69 and "
       "bild.verify_eos true, or method speculative, or method autoregressive, or method ngram"},
      // When sampled, only a fallback threshold above 1 gives the large model's tokens.
      {bild({{"rollback_threshold", 0.5}}), Contract::kExact, false,
       "require_contract: EXACT; bild with a temperature above 0 gives LOSSY; needed: temperature "
       "0, or bild.fallback_threshold 1.01, or method speculative, or method autoregressive, or "
       "method ngram"},
      {bild({{"window", 3}}), Contract::kExact, false,
       "require_contract: EXACT; bild with a temperature above 0 gives LOSSY; needed: temperature "
       "0 with bild.rollback_threshold 0.69, or method speculative, or method autoregressive, or "
       "method ngram"},
      {speculative({{"acceptance", "ACCEPTANCE_RATIO"}}), Contract::kExact, false,
       "require_contract: EXACT; speculative with a temperature above 0 gives DISTRIBUTION; "
       "needed: temperature 0, or speculative.acceptance ACCEPTANCE_MATCH, or method "
       "autoregressive, or method ngram"},
      {beams(4), Contract::kExact, true,
       "require_contract: EXACT; beam gives LOSSY; needed: beam.width 1"},
  };
  for (auto c : cases) {
    c.request.require_contract = c.required;
    const auto plan = plan_method(d, c.request, c.greedy, 1);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << c.text;
    EXPECT_EQ(message(plan.status()), c.text);
  }
  // No method searches beams and is EXACT.
  GenerateRequest searching = beams(4);
  searching.method = kAuto;
  searching.require_contract = Contract::kExact;
  EXPECT_EQ(message(plan_method(d, searching, true, 1).status()),
            "require_contract: EXACT; beam gives LOSSY; needed: beam.width 1");
}

// docs/architecture.md, Determinism: one row and several rows use different kernels, so the order
// of nearly equal logits may change.
TEST_F(Plans, WithoutBatchInvarianceOnlySingleRowPassesAreExact) {
  large_.shape.batch_invariant = false;
  DeploymentConfig config;
  config.default_method = "speculative";
  config.methods["bild"] = {{"rollback_threshold", 0.69}};
  const Deployment d = deployment(true, config);
  for (const MethodInfo& offer : d.methods) {
    const bool alone = offer.method == kAutoregressive;
    EXPECT_EQ(offer.greedy, alone ? Contract::kExact : Contract::kExactUpToRounding)
        << offer.method;
  }
  EXPECT_EQ(d.offers("bild")->sampled, Contract::kLossy);
  EXPECT_EQ(plan_method(d, speculative({}), true, 1)->contract, Contract::kExactUpToRounding);
  const GenerateRequest by_ratio = speculative({{"acceptance", "ACCEPTANCE_RATIO"}});
  EXPECT_EQ(plan_method(d, by_ratio, false, 1)->contract, Contract::kDistribution);

  GenerateRequest request = bild({});
  for (const Contract met : {Contract::kDistribution, Contract::kExactUpToRounding}) {
    request.require_contract = met;
    EXPECT_TRUE(plan_method(d, request, true, 1).ok()) << contract_name(met);
  }
  request.require_contract = Contract::kExact;
  const auto refused = plan_method(d, request, true, 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(message(refused.status()),
            "require_contract: EXACT; bild on cpu:0, which is not batch-invariant, "
            "gives EXACT_UP_TO_ROUNDING; needed: method autoregressive");
  // Rounding is not among what parameters change.
  request = by_ratio;
  request.require_contract = Contract::kExactUpToRounding;
  EXPECT_EQ(message(plan_method(d, request, false, 1).status()),
            "require_contract: EXACT_UP_TO_ROUNDING; speculative with a temperature above 0 gives "
            "DISTRIBUTION; needed: temperature 0, or speculative.acceptance ACCEPTANCE_MATCH, or "
            "method autoregressive, or method ngram");
  request = asking(kAuto);
  request.require_contract = Contract::kExact;
  EXPECT_EQ(plan_method(d, request, true, 1)->method, kAutoregressive);
}

// Rows and needs of an entry reach the plan. The method exists only in this test.
struct TreeParams {
  int nodes = 6;
  std::string path;
  std::string adapter;
};

TEST_F(Plans, AnEntryDescribesAMethodCompletely) {
  static const auto* const kTree = make_entry<TreeParams>({
      .name = "tree",
      .requirement = "`tree.path`",
      .fields = Fields<TreeParams>()
                    .add("nodes", &TreeParams::nodes, {1, 99}, "of a tree", Field::By::kRequest)
                    .add("path", &TreeParams::path, "a file", Field::By::kDeployment)
                    .add("adapter", &TreeParams::adapter, "its masks", Field::By::kDeployment),
      .needs =
          [](const TreeParams& a, const DeploymentConfig& c) {
            MethodNeeds needs{{of_large(c)}, {}};
            needs.models[0].adapter = a.adapter;
            if (a.path.empty()) needs.lacking = Refusal{"path", "none", "a file"};
            return needs;
          },
      .contract = [](const TreeParams&, bool) { return Contract::kExact; },
      .extra_rows = [](const TreeParams& a) { return a.nodes; },
      .start = [](Gen, const TreeParams&) { return Task<void>(); },
  });
  const Methods all = {find_method(kAutoregressive), kTree};
  DeploymentConfig config;
  EXPECT_THAT(names(deployment(false, config, all).methods), ElementsAre("autoregressive"));
  config.methods["tree"] = {{"path", "x.safetensors"}, {"adapter", "second"}};
  large_.shape.adapters = {{"first", 3, 0, 0}, {"second", 3, 0, 0}};
  const Deployment d = deployment(false, config, all);
  EXPECT_THAT(names(d.methods), ElementsAre("autoregressive", "tree"));

  const auto plan = plan_method(d, asking("tree", {{"nodes", 9}}), true, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->extra_rows, 9);
  EXPECT_EQ(plan->contract, Contract::kExact);
  EXPECT_EQ(plan->cast->roles[0].adapter, AdapterId(1));
  EXPECT_EQ(plan->context_length, 512) << "positions are not taken by rows of a tree";
  large_.pool.pages = 10;
  EXPECT_EQ(plan_method(d, asking("tree", {{"nodes", 9}}), true, 1)->context_length, 151);
  EXPECT_EQ(message(plan_method(d, asking("tree", {{"path", "y"}}), true, 1).status()),
            "tree.path: y; allowed: unset (parameters are nodes)");
}

TEST_F(Plans, AutoIsTheDefaultIfThatGivesTheContract) {
  DeploymentConfig config;
  config.default_method = "bild";
  const auto chosen = [&](const Deployment& d, Contract required, bool greedy) {
    GenerateRequest request;
    request.require_contract = required;
    return std::string(plan_method(d, request, greedy, 1)->method);
  };
  const Deployment lossy = deployment(true, config);
  EXPECT_EQ(chosen(lossy, Contract::kAny, true), "bild");
  EXPECT_EQ(chosen(lossy, Contract::kLossy, false), "bild");
  EXPECT_EQ(chosen(lossy, Contract::kExact, true), kAutoregressive);
  EXPECT_EQ(chosen(lossy, Contract::kDistribution, false), kAutoregressive);
  config.methods["bild"] = {{"rollback_threshold", 0.69}};
  EXPECT_EQ(chosen(deployment(true, config), Contract::kExact, true), "bild");
  config.default_method = "speculative";
  const Deployment speculative = deployment(true, config);
  EXPECT_EQ(chosen(speculative, Contract::kExact, true), "speculative");
  EXPECT_EQ(chosen(speculative, Contract::kDistribution, false), "speculative");
  EXPECT_EQ(chosen(speculative, Contract::kExact, false), "speculative");
  config.methods["speculative"] = {{"acceptance", "ACCEPTANCE_RATIO"}};
  const Deployment ratio = deployment(true, config);
  EXPECT_EQ(chosen(ratio, Contract::kDistribution, false), "speculative");
  EXPECT_EQ(chosen(ratio, Contract::kExact, false), kAutoregressive);
  // Beam search replaces autoregressive decoding.
  GenerateRequest searching;
  searching.beam = {{"width", 4}};
  EXPECT_EQ(plan_method(speculative, searching, true, 1)->method, kAutoregressive);
}

TEST_F(Plans, WithoutADefaultAutoIsTheFirstExactMethodThatDrafts) {
  const auto chosen = [](const Deployment& d) {
    return plan_method(d, GenerateRequest(), false, 1)->method;
  };
  EXPECT_EQ(chosen(deployment(true)), "speculative");
  EXPECT_EQ(chosen(deployment(false)), "ngram");
  DeploymentConfig config;
  config.methods["speculative"] = {{"acceptance", "ACCEPTANCE_RATIO"}};
  EXPECT_EQ(chosen(deployment(true, config)), "ngram") << "of the same distribution is not enough";
  // The deployment's settings hold.
  config.methods["speculative"] = {{"draft_tokens", int64_t{2}}};
  const int usual = plan_method(deployment(true), GenerateRequest(), true, 1)->extra_rows;
  EXPECT_LE(plan_method(deployment(true, config), GenerateRequest(), true, 1)->extra_rows, usual);
  Deployment half = deployment(true);
  half.lost = [this](DeviceId device) { return device == small_.device; };
  small_.device = DeviceId(1);
  EXPECT_EQ(chosen(half), kAutoregressive) << "the small model's device is lost";
  EXPECT_EQ(plan_method(half, speculative({}), true, 1)->method, "speculative") << "as asked";
  GenerateRequest searching;
  searching.beam = {{"width", 4}};
  EXPECT_EQ(plan_method(deployment(true), searching, true, 1)->method, kAutoregressive);
}

// As on CUDA.
TEST_F(Plans, AutoDraftsWithoutBatchInvarianceUnlessTheRequestRequiresExact) {
  large_.shape.batch_invariant = false;
  for (const bool greedy : {true, false}) {
    for (const bool with_small : {true, false}) {
      const Deployment d = deployment(with_small);
      const std::string drafting = with_small ? "speculative" : "ngram";
      EXPECT_EQ(d.methods.front().method, drafting);
      GenerateRequest request = asking(kAuto);
      for (const Contract met :
           {Contract::kAny, Contract::kDistribution, Contract::kExactUpToRounding}) {
        request.require_contract = met;
        const auto plan = plan_method(d, request, greedy, 1);
        EXPECT_EQ(plan->method, drafting) << contract_name(met);
        EXPECT_EQ(plan->contract, Contract::kExactUpToRounding) << contract_name(met);
      }
      request.require_contract = Contract::kExact;
      const auto exact = plan_method(d, request, greedy, 1);
      EXPECT_EQ(exact->method, kAutoregressive);
      EXPECT_EQ(exact->contract, Contract::kExact);
    }
  }
}

TEST_F(Plans, AutoAvoidsASmallModelThatWouldShortenTheAnswer) {
  small_.shape.max_positions = 100;
  DeploymentConfig config;
  config.default_method = "speculative";
  const Deployment d = deployment(true, config);
  const auto chosen = [&](int64_t prompt, std::optional<int64_t> max_new_tokens) {
    GenerateRequest request;
    request.stopping.max_new_tokens = max_new_tokens;
    return plan_method(d, request, true, prompt)->method;
  };
  EXPECT_EQ(chosen(84, {}), "speculative");  // 16 new tokens by default
  EXPECT_EQ(chosen(85, {}), kAutoregressive);
  EXPECT_EQ(chosen(20, 80), "speculative");
  EXPECT_EQ(chosen(20, 81), kAutoregressive);
  EXPECT_EQ(chosen(20, std::numeric_limits<int64_t>::max()), kAutoregressive);
  // For a named method the context is the smaller one, which the caller checks.
  EXPECT_EQ(plan_method(d, speculative({}), true, 200)->context_length, 100);
  EXPECT_EQ(plan_method(d, ngram({}), true, 1)->context_length, 512);
  small_.shape.max_positions = 512;
  small_.pool.pages = 2;
  EXPECT_EQ(plan_method(d, bild({}), true, 1)->context_length, 32);
}

// Early exit needs frontier rows only for one run.
TEST_F(Plans, EarlyExitHasTheContextOfItsModel) {
  DeploymentConfig config;
  config.default_method = "bild";
  config.methods["bild"] = {{"early_exit_layer", int64_t{2}}};
  large_.pool.frontier_pages = 2;  // 32 rows, of 512
  const Deployment d = deployment(false, config);
  GenerateRequest request;
  request.stopping.max_new_tokens = 16;
  EXPECT_EQ(plan_method(d, request, true, 300)->method, "bild");
  const auto plan = plan_method(d, bild({}), true, 300);
  EXPECT_EQ(plan->context_length, 512);
  EXPECT_EQ(plan->cast->roles[1].frontier_rows, 11);
  // A run that does not fit the frontier.
  EXPECT_EQ(plan_method(d, bild({{"max_small_run", int64_t{64}}}), true, 300)->context_length, 32);
}

TEST_F(Plans, BeamsTakeOneChoiceAndNoTemperature) {
  const Deployment d = deployment(true);
  const struct {
    std::function<void(GenerateRequest&)> change;
    const char* text;
  } cases[] = {
      {[](auto& r) { r.method = "speculative"; },
       "beam.width: 4; allowed: 1 with method speculative (beam search needs a model that "
       "decodes alone)"},
      {[](auto& r) { r.method = "bild"; },
       "beam.width: 4; allowed: 1 with method bild (beam search needs a model that decodes alone)"},
      {[](auto& r) { r.n = 2; }, "n: 2; allowed: 1 with beam.width 4"},
      {[](auto& r) { r.sampling.temperature = 0.5; },
       "temperature: 0.5; allowed: 0 with beam.width 4"},
      {[](auto& r) { r.beam = {{"width", 17}}; }, "beam.width: 17; allowed: [1, 16]"},
      {[](auto& r) { set_setting(&r.beam, "length_penalty", kNan); },
       "beam.length_penalty: nan; allowed: [-10, 10]"},
  };
  for (const auto& c : cases) {
    GenerateRequest request = beams(4);
    c.change(request);
    const auto plan = plan_method(d, request, true, 1);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_EQ(message(plan.status()), c.text);
  }
  GenerateRequest greedy = beams(4);
  greedy.sampling.temperature = 0;
  EXPECT_TRUE(plan_method(d, greedy, true, 1).ok());
}

TEST_F(Plans, EachBeamNeedsRowsForTheWholeText) {
  large_.pool.pages = 22;  // 5 for each of 4 beams
  const auto plan = plan_method(deployment(true), beams(4), true, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->width, 4);
  EXPECT_EQ(plan->context_length, 80);
  EXPECT_EQ(plan_method(deployment(true), beams(1), true, 1)->context_length, 352);
}

}  // namespace
}  // namespace tandem
