#include "engine/host/methods.h"

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

// A deployment that is up, of models that need no weights to be asked about.
class Methods : public ::testing::Test {
 protected:
  Methods() {
    large_.id = ModelId(0);
    small_.id = ModelId(1);
    for (LoadedModel* m : {&large_, &small_}) {
      m->shape.max_positions = 512;
      m->shape.layers = 4;
      m->pool.pages = 64;
      m->pool.page_rows = 16;
    }
  }

  Deployment deployment(bool with_small, DeploymentConfig config = {}) const {
    Deployment d;
    d.name = config.name = "d";
    config.large = "large";
    config.small = with_small ? "small" : "";
    d.large = &large_;
    d.small = with_small ? &small_ : nullptr;
    d.methods = offered_methods(config);
    d.config = std::move(config);
    d.context_length = 512;
    d.max_new_tokens = 511;
    d.default_max_new_tokens = 16;
    return d;
  }

  LoadedModel large_, small_;
};

GenerateRequest asking(Method method) {
  GenerateRequest request;
  request.method = method;
  return request;
}
GenerateRequest speculative(SpeculativeFields fields) {
  GenerateRequest request = asking(Method::kSpeculative);
  request.speculative = fields;
  return request;
}
GenerateRequest bild(BildFields fields) {
  GenerateRequest request = asking(Method::kBild);
  request.bild = fields;
  return request;
}
GenerateRequest beams(int64_t width) {
  GenerateRequest request = asking(Method::kAutoregressive);
  request.beam.width = width;
  return request;
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

std::vector<std::string> names(const std::vector<MethodInfo>& methods) {
  std::vector<std::string> out;
  for (const MethodInfo& m : methods) out.emplace_back(method_name(m.method));
  return out;
}

std::vector<std::pair<Role, int>> roles(const MethodPlan& plan) {
  std::vector<std::pair<Role, int>> out;
  for (const RoleModel& r : plan.roles) {
    out.emplace_back(r.role, r.to == 0 ? static_cast<int>(r.model.index()) : 100 + r.to);
  }
  return out;
}

TEST_F(Methods, RangesNameFieldValueAndWhatIsAllowed) {
  const struct {
    absl::Status status;
    const char* text;
  } cases[] = {
      {check_fields(SpeculativeFields{.draft_tokens = 0}),
       "speculative.draft_tokens: 0; allowed: [1, 64]"},
      {check_fields(SpeculativeFields{.draft_tokens = 1'000'000}),
       "speculative.draft_tokens: 1000000; allowed: [1, 64]"},
      {check_fields(SpeculativeFields{.draft_tokens = std::numeric_limits<int64_t>::min()}),
       "speculative.draft_tokens: -9223372036854775808; allowed: [1, 64]"},
      {check_fields(SpeculativeFields{.min_draft_probability = -0.1}),
       "speculative.min_draft_probability: -0.1; allowed: [0, 1]"},
      {check_fields(SpeculativeFields{.min_draft_probability = kNan}),
       "speculative.min_draft_probability: nan; allowed: [0, 1]"},
      {check_fields(BildFields{.fallback_threshold = 2.5}),
       "bild.fallback_threshold: 2.5; allowed: [0, 2]"},
      {check_fields(BildFields{.fallback_threshold = kNan}),
       "bild.fallback_threshold: nan; allowed: [0, 2]"},
      {check_fields(BildFields{.rollback_threshold = -1}),
       "bild.rollback_threshold: -1; allowed: [0, inf]"},
      {check_fields(BildFields{.rollback_threshold = kNan}),
       "bild.rollback_threshold: nan; allowed: [0, inf]"},
      {check_fields(BildFields{.max_small_run = -1}), "bild.max_small_run: -1; allowed: [0, 4096]"},
      {check_fields(BildFields{.window = 65}), "bild.window: 65; allowed: [1, 64]"},
      {check_fields(BeamFields{.width = 0}), "beam.width: 0; allowed: [1, 16]"},
      {check_fields(BeamFields{.width = 17}), "beam.width: 17; allowed: [1, 16]"},
      {check_fields(BeamFields{.length_penalty = kInf}),
       "beam.length_penalty: inf; allowed: [-10, 10]"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(message(c.status), c.text);
  }
  EXPECT_TRUE(check_fields(BildFields{.fallback_threshold = 0, .rollback_threshold = kInf}).ok());
  EXPECT_TRUE(check_fields(BeamFields{.width = 16, .length_penalty = -10}).ok());
  // plan_method() looks at the method's own.
  EXPECT_EQ(message(plan_method(deployment(true), bild({.window = 0}), true, 1).status()),
            "bild.window: 0; allowed: [1, 64]");
  EXPECT_EQ(
      message(plan_method(deployment(true), speculative({.draft_tokens = 65}), true, 1).status()),
      "speculative.draft_tokens: 65; allowed: [1, 64]");
}

TEST_F(Methods, WhatIsOfferedFollowsFromTheDeployment) {
  EXPECT_THAT(names(deployment(false).methods), ElementsAre("autoregressive", "speculative"));
  EXPECT_THAT(names(deployment(true).methods),
              ElementsAre("autoregressive", "speculative", "bild"));
  DeploymentConfig config;
  config.bild.early_exit_layer = 2;
  EXPECT_THAT(names(deployment(false, config).methods),
              ElementsAre("autoregressive", "speculative", "bild"));
  // The default comes first.
  config.default_method = MethodChoice::kBild;
  EXPECT_THAT(names(deployment(false, config).methods),
              ElementsAre("bild", "autoregressive", "speculative"));
  config.default_method = MethodChoice::kSpeculative;
  EXPECT_THAT(names(deployment(true, config).methods),
              ElementsAre("speculative", "autoregressive", "bild"));
}

TEST_F(Methods, OffersSayTheContractAndParametersOfARequestThatSetsNothing) {
  const Deployment plain = deployment(true);
  const MethodInfo& speculative = *plain.offers(Method::kSpeculative);
  EXPECT_EQ(speculative.greedy, Contract::kExact);
  EXPECT_EQ(speculative.sampled, Contract::kDistribution);
  EXPECT_EQ(speculative.speculative.draft, SpeculativeFields::Draft::kModel);
  EXPECT_EQ(speculative.speculative.draft_tokens, 4);
  const MethodInfo& bild = *plain.offers(Method::kBild);
  EXPECT_EQ(bild.greedy, Contract::kLossy);
  EXPECT_EQ(bild.sampled, Contract::kLossy);
  EXPECT_EQ(bild.bild.fallback_threshold, 0.6);
  EXPECT_EQ(bild.bild.early_exit, false);
  EXPECT_FALSE(bild.bild.window.has_value());
  EXPECT_EQ(deployment(false).offers(Method::kSpeculative)->speculative.draft,
            SpeculativeFields::Draft::kNgram);

  DeploymentConfig config;
  config.bild.rollback_threshold = 0.69;
  config.bild.early_exit_layer = 1;
  EXPECT_EQ(deployment(true, config).offers(Method::kBild)->greedy, Contract::kExact);
  EXPECT_EQ(deployment(true, config).offers(Method::kBild)->bild.early_exit, false);
  EXPECT_EQ(deployment(false, config).offers(Method::kBild)->bild.early_exit, true);
}

TEST_F(Methods, WhatIsNotOfferedSaysWhatIs) {
  DeploymentConfig exits;
  exits.bild.early_exit_layer = 2;
  const struct {
    Deployment deployment;
    GenerateRequest request;
    const char* text;
  } cases[] = {
      {deployment(false), bild({}),
       "method: bild; offered by model \"d\": autoregressive, speculative"},
      {deployment(true), asking(Method::kPpd),
       "method: ppd; offered by model \"d\": autoregressive, speculative, bild"},
      {deployment(false), speculative({.draft = SpeculativeFields::Draft::kModel}),
       "speculative.draft: DRAFT_MODEL; offered by model \"d\": DRAFT_NGRAM (there is no small "
       "model)"},
      {deployment(true), bild({.early_exit = true}),
       "bild.early_exit: true; offered by model \"d\": false (its deployment names no "
       "bild.early_exit_layer)"},
      {deployment(false, exits), bild({.early_exit = false}),
       "bild.early_exit: false; offered by model \"d\": true (there is no small model)"},
  };
  for (const auto& c : cases) {
    const auto plan = plan_method(c.deployment, c.request, true, 1);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << c.text;
    EXPECT_EQ(message(plan.status()), c.text);
  }
}

TEST_F(Methods, ModelsInTheirRoles) {
  DeploymentConfig config;
  config.bild.early_exit_layer = 2;
  const Deployment d = deployment(true, config);
  const auto of = [&](const GenerateRequest& r) { return roles(*plan_method(d, r, true, 1)); };
  const std::pair large(Role::kLarge, 0), small(Role::kSmall, 1), lower(Role::kSmall, 102);
  EXPECT_THAT(of(asking(Method::kAutoregressive)), ElementsAre(large));
  EXPECT_THAT(of(beams(4)), ElementsAre(large));
  EXPECT_THAT(of(speculative({})), ElementsAre(large, small));
  EXPECT_THAT(of(speculative({.draft = SpeculativeFields::Draft::kNgram})), ElementsAre(large));
  EXPECT_THAT(of(bild({})), ElementsAre(large, small));
  EXPECT_THAT(of(bild({.early_exit = true})), ElementsAre(large, lower));
  EXPECT_EQ(plan_method(d, bild({.early_exit = true}), true, 1)->roles[1].model, large_.id);
}

TEST_F(Methods, ExactIsReportedWhereItHoldsAndNowhereElse) {
  const Deployment d = deployment(true);
  const struct {
    GenerateRequest request;
    bool greedy;
    Contract contract;
  } cases[] = {
      {asking(Method::kAutoregressive), true, Contract::kExact},
      {asking(Method::kAutoregressive), false, Contract::kExact},
      {beams(1), true, Contract::kExact},
      {beams(2), true, Contract::kLossy},
      {speculative({}), true, Contract::kExact},
      {speculative({}), false, Contract::kDistribution},
      {speculative({.draft = SpeculativeFields::Draft::kNgram}), false, Contract::kDistribution},
      {bild({}), true, Contract::kLossy},
      {bild({.rollback_threshold = 0.69}), true, Contract::kExact},
      {bild({.rollback_threshold = 0}), true, Contract::kExact},
      {bild({.rollback_threshold = 0.69}), false, Contract::kLossy},
      {bild({.rollback_threshold = std::log(2.0)}), true, Contract::kLossy},
      {bild({.rollback_threshold = 0.69, .verify_eos = false}), true, Contract::kLossy},
      {bild({.rollback_threshold = 0.69, .window = 4}), true, Contract::kExact},
      {bild({.fallback_threshold = 1.5}), true, Contract::kExact},
      {bild({.fallback_threshold = 1.5}), false, Contract::kExact},
      {bild({.fallback_threshold = 1}), true, Contract::kLossy},
      {bild({.fallback_threshold = 1.5, .window = 4}), true, Contract::kLossy},
      {bild({.rollback_threshold = 1e300}), true, Contract::kLossy},
  };
  for (const auto& c : cases) {
    const auto plan = plan_method(d, c.request, c.greedy, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->contract, c.contract)
        << method_name(c.request.method) << " greedy " << c.greedy << " rollback "
        << c.request.bild.rollback_threshold.value_or(-1);
    EXPECT_EQ(plan->method, c.request.method);
  }
}

TEST_F(Methods, AContractThatCannotBeNamesTheParameterAndItsBound) {
  const Deployment d = deployment(true);
  const struct {
    GenerateRequest request;
    Contract required;
    bool greedy;
    const char* text;
  } cases[] = {
      {bild({}), Contract::kExact, true,
       "require_contract: EXACT; bild.rollback_threshold: 5; needed: at most 0.69 (< ln 2) with "
       "verify_eos"},
      {bild({.rollback_threshold = 0.7}), Contract::kDistribution, true,
       "require_contract: DISTRIBUTION; bild.rollback_threshold: 0.7; needed: at most 0.69 (< ln "
       "2) with verify_eos"},
      {bild({.rollback_threshold = 0.5, .verify_eos = false}), Contract::kExact, true,
       "require_contract: EXACT; bild.verify_eos: false; needed: true"},
      {bild({.rollback_threshold = 0.5}), Contract::kDistribution, false,
       "require_contract: DISTRIBUTION; bild with a temperature above 0 gives LOSSY; needed: "
       "temperature 0, and bild.rollback_threshold at most 0.69 (< ln 2) with verify_eos"},
      {speculative({}), Contract::kExact, false,
       "require_contract: EXACT; speculative with a temperature above 0 gives DISTRIBUTION; "
       "needed: temperature 0, or autoregressive"},
      {beams(4), Contract::kExact, true, "require_contract: EXACT; beam.width: 4; needed: 1"},
  };
  for (auto c : cases) {
    c.request.require_contract = c.required;
    const auto plan = plan_method(d, c.request, c.greedy, 1);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << c.text;
    EXPECT_EQ(message(plan.status()), c.text);
  }
}

TEST_F(Methods, AutoIsTheDefaultWhereThatGivesTheContract) {
  DeploymentConfig config;
  config.default_method = MethodChoice::kBild;
  const auto chosen = [&](const Deployment& d, Contract required, bool greedy) {
    GenerateRequest request;
    request.require_contract = required;
    return plan_method(d, request, greedy, 1)->method;
  };
  const Deployment lossy = deployment(true, config);
  EXPECT_EQ(chosen(lossy, Contract::kAny, true), Method::kBild);
  EXPECT_EQ(chosen(lossy, Contract::kLossy, false), Method::kBild);
  EXPECT_EQ(chosen(lossy, Contract::kExact, true), Method::kAutoregressive);
  EXPECT_EQ(chosen(lossy, Contract::kDistribution, false), Method::kAutoregressive);
  config.bild.rollback_threshold = 0.69;
  EXPECT_EQ(chosen(deployment(true, config), Contract::kExact, true), Method::kBild);
  config.default_method = MethodChoice::kSpeculative;
  const Deployment speculative = deployment(true, config);
  EXPECT_EQ(chosen(speculative, Contract::kExact, true), Method::kSpeculative);
  EXPECT_EQ(chosen(speculative, Contract::kDistribution, false), Method::kSpeculative);
  EXPECT_EQ(chosen(speculative, Contract::kExact, false), Method::kAutoregressive);
  EXPECT_EQ(chosen(deployment(true), Contract::kAny, true), Method::kAutoregressive);
  // Beam search is autoregressive decoding's.
  GenerateRequest searching;
  searching.beam.width = 4;
  EXPECT_EQ(plan_method(speculative, searching, true, 1)->method, Method::kAutoregressive);
}

TEST_F(Methods, ASmallModelWithLessRoomShortensNoAnswerOfAuto) {
  small_.shape.max_positions = 100;
  DeploymentConfig config;
  config.default_method = MethodChoice::kSpeculative;
  const Deployment d = deployment(true, config);
  const auto chosen = [&](int64_t prompt, std::optional<int64_t> max_new_tokens) {
    GenerateRequest request;
    request.stopping.max_new_tokens = max_new_tokens;
    return plan_method(d, request, true, prompt)->method;
  };
  EXPECT_EQ(chosen(84, {}), Method::kSpeculative);  // 16 new tokens by default
  EXPECT_EQ(chosen(85, {}), Method::kAutoregressive);
  EXPECT_EQ(chosen(20, 80), Method::kSpeculative);
  EXPECT_EQ(chosen(20, 81), Method::kAutoregressive);
  EXPECT_EQ(chosen(20, std::numeric_limits<int64_t>::max()), Method::kAutoregressive);
  // Asked for by name, the room is the smaller one, for the caller to check.
  EXPECT_EQ(plan_method(d, speculative({}), true, 200)->context_length, 100);
  EXPECT_EQ(plan_method(d, speculative({.draft = SpeculativeFields::Draft::kNgram}), true, 1)
                ->context_length,
            512);
  small_.shape.max_positions = 512;
  small_.pool.pages = 2;
  EXPECT_EQ(plan_method(d, bild({}), true, 1)->context_length, 32);
}

TEST_F(Methods, BeamsWantOneChoiceAndNoTemperature) {
  const Deployment d = deployment(true);
  const struct {
    std::function<void(GenerateRequest&)> change;
    const char* text;
  } cases[] = {
      {[](auto& r) { r.method = Method::kSpeculative; },
       "beam.width: 4; allowed: 1 with method speculative (beam search is autoregressive)"},
      {[](auto& r) { r.method = Method::kBild; },
       "beam.width: 4; allowed: 1 with method bild (beam search is autoregressive)"},
      {[](auto& r) { r.n = 2; }, "n: 2; allowed: 1 with beam.width 4"},
      {[](auto& r) { r.sampling.temperature = 0.5; },
       "temperature: 0.5; allowed: 0 with beam.width 4"},
      {[](auto& r) { r.beam.width = 17; }, "beam.width: 17; allowed: [1, 16]"},
      {[](auto& r) { r.beam.length_penalty = kNan; },
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

TEST_F(Methods, EachBeamNeedsRoomForTheWholeText) {
  large_.pool.pages = 22;  // 5 for each of 4 beams
  const auto plan = plan_method(deployment(true), beams(4), true, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->width, 4);
  EXPECT_EQ(plan->context_length, 80);
  EXPECT_EQ(plan_method(deployment(true), beams(1), true, 1)->context_length, 352);
}

}  // namespace
}  // namespace tandem
