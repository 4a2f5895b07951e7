#include "engine/host/methods.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/beam.h"
#include "engine/decode/bild.h"
#include "engine/decode/speculative.h"

namespace tandem {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr char kExactBound[] = "at most 0.69 (< ln 2) with verify_eos";

template <class Number>
absl::Status in_range(absl::string_view field, const std::optional<Number>& value, Number min,
                      Number max) {
  if (!value || (*value >= min && *value <= max)) return absl::OkStatus();  // false for NaN
  return out_of_range(field, *value, absl::StrCat("[", min, ", ", max, "]"));
}

// The nearest float, and +inf for what is above all of them.
float to_float(double v) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return v > kMax ? std::numeric_limits<float>::infinity() : static_cast<float>(v);
}

// Every field set: the request's, else the deployment's.
SpeculativeFields with_defaults(const SpeculativeFields& asked, const DeploymentConfig& config) {
  using Draft = SpeculativeFields::Draft;
  const SpeculativeDefaults& d = config.speculative;
  const DraftSource source =
      d.draft.value_or(config.small.empty() ? DraftSource::kNgram : DraftSource::kModel);
  SpeculativeFields out;
  out.draft = asked.draft.value_or(source == DraftSource::kModel ? Draft::kModel : Draft::kNgram);
  out.draft_tokens = asked.draft_tokens.value_or(d.draft_tokens);
  out.adaptive = asked.adaptive.value_or(d.adaptive);
  out.min_draft_probability = asked.min_draft_probability.value_or(d.min_draft_probability);
  return out;
}

// Likewise; but `window` has no default, and stays unset.
BildFields with_defaults(const BildFields& asked, const DeploymentConfig& config) {
  const BildDefaults& d = config.bild;
  BildFields out;
  out.fallback_threshold = asked.fallback_threshold.value_or(d.fallback_threshold);
  out.rollback_threshold = asked.rollback_threshold.value_or(d.rollback_threshold);
  out.max_small_run = asked.max_small_run.value_or(d.max_small_run);
  out.verify_eos = asked.verify_eos.value_or(d.verify_eos);
  out.early_exit = asked.early_exit.value_or(config.small.empty());
  out.window = asked.window;
  return out;
}

SpeculativeParams params_of(const SpeculativeFields& fields) {
  SpeculativeParams out;
  out.draft = fields.draft == SpeculativeFields::Draft::kModel ? SpeculativeParams::Draft::kModel
                                                               : SpeculativeParams::Draft::kNgram;
  out.draft_tokens = static_cast<int>(*fields.draft_tokens);
  out.adaptive = *fields.adaptive;
  out.min_draft_probability = static_cast<float>(*fields.min_draft_probability);
  return out;
}

BildParams params_of(const BildFields& fields) {
  BildParams out;
  out.fallback_threshold = to_float(*fields.fallback_threshold);
  out.rollback_threshold = to_float(*fields.rollback_threshold);
  out.max_small_run = static_cast<int>(*fields.max_small_run);
  out.verify_eos = *fields.verify_eos;
  if (fields.window) out.window = static_cast<int>(*fields.window);
  return out;
}

Contract contract_of(const BildParams& params, bool greedy) {
  return bild_is_exact(params, greedy) ? Contract::kExact : Contract::kLossy;
}

int64_t room_of(const LoadedModel& model, int width) {
  return std::min<int64_t>(model.shape.max_positions,
                           model.pool.pages / width * model.pool.page_rows);
}

void add_role(Role role, const LoadedModel& model, int to, MethodPlan* plan) {
  const int64_t room = room_of(model, plan->width);
  plan->context_length = plan->roles.empty() ? room : std::min(plan->context_length, room);
  plan->roles.push_back({role, model.id, to});
}

absl::Status lacks(const Deployment& deployment, absl::string_view field, absl::string_view value,
                   absl::string_view offered) {
  return absl::FailedPreconditionError(
      absl::StrCat(field, ": ", value, "; offered by model \"", deployment.name, "\": ", offered));
}

MethodPlan plan_autoregressive(const Deployment& deployment, const BeamFields& beams) {
  MethodPlan plan;
  plan.width = static_cast<int>(beams.width.value_or(1));
  add_role(Role::kLarge, *deployment.large, 0, &plan);
  if (plan.width == 1) {
    // Sampled it is exact too, in that a seed decides the tokens (METHODS, contracts).
    plan.start = [](Gen g) { return autoregressive(g); };
    return plan;
  }
  plan.contract = Contract::kLossy;
  BeamParams params;
  params.width = plan.width;
  if (beams.length_penalty) params.length_penalty = static_cast<float>(*beams.length_penalty);
  plan.start = [params](Gen g) { return beam(g, params); };
  return plan;
}

absl::StatusOr<MethodPlan> plan_speculative(const Deployment& deployment,
                                            const SpeculativeFields& asked, bool greedy) {
  const SpeculativeParams params = params_of(with_defaults(asked, deployment.config));
  MethodPlan plan;
  plan.method = Method::kSpeculative;
  plan.contract = greedy ? Contract::kExact : Contract::kDistribution;
  add_role(Role::kLarge, *deployment.large, 0, &plan);
  if (params.draft == SpeculativeParams::Draft::kModel) {
    if (!deployment.small) {
      return lacks(deployment, "speculative.draft", "DRAFT_MODEL",
                   "DRAFT_NGRAM (there is no small model)");
    }
    add_role(Role::kSmall, *deployment.small, 0, &plan);
  }
  plan.start = [params](Gen g) { return speculative(g, params); };
  return plan;
}

absl::StatusOr<MethodPlan> plan_bild(const Deployment& deployment, const BildFields& asked,
                                     bool greedy) {
  const BildFields fields = with_defaults(asked, deployment.config);
  const BildParams params = params_of(fields);
  MethodPlan plan;
  plan.method = Method::kBild;
  plan.contract = contract_of(params, greedy);
  add_role(Role::kLarge, *deployment.large, 0, &plan);
  if (*fields.early_exit) {
    const int layer = deployment.config.bild.early_exit_layer;
    if (layer == 0) {
      return lacks(deployment, "bild.early_exit", "true",
                   "false (its deployment names no bild.early_exit_layer)");
    }
    add_role(Role::kSmall, *deployment.large, layer, &plan);
  } else {
    if (!deployment.small) {
      return lacks(deployment, "bild.early_exit", "false", "true (there is no small model)");
    }
    add_role(Role::kSmall, *deployment.small, 0, &plan);
  }
  plan.start = [params](Gen g) { return bild(g, params); };
  return plan;
}

// What a request says of methods; `auto` says nothing.
struct Asked {
  SpeculativeFields speculative;
  BildFields bild;
  BeamFields beam;
};

// The plan of one offered method, whatever its contract.
absl::StatusOr<MethodPlan> plan_of(const Deployment& deployment, Method method, const Asked& asked,
                                   bool greedy) {
  switch (method) {
    case Method::kSpeculative:
      return plan_speculative(deployment, asked.speculative, greedy);
    case Method::kBild:
      return plan_bild(deployment, asked.bild, greedy);
    default:
      return plan_autoregressive(deployment, asked.beam);
  }
}

// Which parameter stands between `plan` and the contract that is required of it.
absl::Status unsatisfied(const Deployment& deployment, const GenerateRequest& request,
                         const MethodPlan& plan, bool greedy) {
  std::string why;
  if (searches_beams(request)) {
    why = absl::StrCat("beam.width: ", *request.beam.width, "; needed: 1");
  } else if (!greedy) {
    why = absl::StrCat(method_name(plan.method), " with a temperature above 0 gives ",
                       contract_name(plan.contract), "; needed: temperature 0",
                       plan.method == Method::kBild
                           ? absl::StrCat(", and bild.rollback_threshold ", kExactBound)
                           : ", or autoregressive");
  } else {
    const BildFields fields = with_defaults(request.bild, deployment.config);
    BildParams verified = params_of(fields);
    verified.verify_eos = true;
    why = bild_is_exact(verified, true)
              ? "bild.verify_eos: false; needed: true"
              : absl::StrCat("bild.rollback_threshold: ", *fields.rollback_threshold,
                             "; needed: ", kExactBound);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("require_contract: ", contract_name(request.require_contract), "; ", why));
}

absl::Status check_beams(const GenerateRequest& request) {
  TANDEM_RETURN_IF_ERROR(check_fields(request.beam));
  if (!searches_beams(request)) return absl::OkStatus();
  const int64_t width = *request.beam.width;
  if (request.method != Method::kAuto && request.method != Method::kAutoregressive) {
    return out_of_range("beam.width", width,
                        absl::StrCat("1 with method ", method_name(request.method),
                                     " (beam search is autoregressive)"));
  }
  const std::string reason = absl::StrCat(" with beam.width ", width);
  if (request.n != 1) return out_of_range("n", request.n, "1" + reason);
  if (const auto t = request.sampling.temperature; t && !(*t <= 0)) {
    return out_of_range("temperature", *t, "0" + reason);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_fields(const SpeculativeFields& fields) {
  TANDEM_RETURN_IF_ERROR(in_range<int64_t>("speculative.draft_tokens", fields.draft_tokens, 1, 64));
  return in_range<double>("speculative.min_draft_probability", fields.min_draft_probability, 0, 1);
}

absl::Status check_fields(const BildFields& fields) {
  TANDEM_RETURN_IF_ERROR(
      in_range<double>("bild.fallback_threshold", fields.fallback_threshold, 0, 2));
  TANDEM_RETURN_IF_ERROR(
      in_range<double>("bild.rollback_threshold", fields.rollback_threshold, 0, kInf));
  TANDEM_RETURN_IF_ERROR(in_range<int64_t>("bild.max_small_run", fields.max_small_run, 0, 4096));
  return in_range<int64_t>("bild.window", fields.window, 1, 64);
}

absl::Status check_fields(const BeamFields& fields) {
  TANDEM_RETURN_IF_ERROR(in_range<int64_t>("beam.width", fields.width, 1, 16));
  return in_range<double>("beam.length_penalty", fields.length_penalty, -10, 10);
}

bool searches_beams(const GenerateRequest& request) { return request.beam.width.value_or(1) > 1; }

std::vector<MethodInfo> offered_methods(const DeploymentConfig& config) {
  std::vector<MethodInfo> offered(2);
  offered[0].method = Method::kAutoregressive;
  offered[0].greedy = offered[0].sampled = Contract::kExact;
  offered[1].method = Method::kSpeculative;
  offered[1].greedy = Contract::kExact;
  offered[1].sampled = Contract::kDistribution;
  offered[1].speculative = with_defaults(SpeculativeFields(), config);
  Method preferred = config.default_method == MethodChoice::kSpeculative ? Method::kSpeculative
                                                                         : Method::kAutoregressive;
  if (!config.small.empty() || config.bild.early_exit_layer > 0) {
    MethodInfo& bild = offered.emplace_back();
    bild.method = Method::kBild;
    bild.bild = with_defaults(BildFields(), config);
    bild.greedy = contract_of(params_of(bild.bild), true);
    bild.sampled = contract_of(params_of(bild.bild), false);
    if (config.default_method == MethodChoice::kBild) preferred = Method::kBild;
  }
  const auto first = std::find_if(offered.begin(), offered.end(),
                                  [&](const MethodInfo& m) { return m.method == preferred; });
  std::rotate(offered.begin(), first, first + 1);
  return offered;
}

absl::StatusOr<MethodPlan> plan_method(const Deployment& deployment, const GenerateRequest& request,
                                       bool greedy, int64_t prompt_tokens) {
  TANDEM_RETURN_IF_ERROR(check_beams(request));
  if (request.method == Method::kAuto) {
    // An answer is not cut shorter because a small model has less room than the large one.
    const int64_t answer =
        std::min(deployment.context_length,
                 request.stopping.max_new_tokens.value_or(deployment.default_max_new_tokens));
    const int64_t rows = std::min(deployment.context_length, prompt_tokens + answer);
    for (const MethodInfo& offer : deployment.methods) {
      if (searches_beams(request) && offer.method != Method::kAutoregressive) continue;
      TANDEM_ASSIGN_OR_RETURN(MethodPlan plan,
                              plan_of(deployment, offer.method, {{}, {}, request.beam}, greedy));
      const bool fits = plan.context_length >= rows || plan.method == Method::kAutoregressive;
      if (plan.contract >= request.require_contract && fits) return plan;
    }
    return unsatisfied(deployment, request, plan_autoregressive(deployment, request.beam), greedy);
  }
  if (!deployment.offers(request.method)) {
    return lacks(deployment, "method", method_name(request.method), deployment.offered());
  }
  if (request.method == Method::kSpeculative) {
    TANDEM_RETURN_IF_ERROR(check_fields(request.speculative));
  }
  if (request.method == Method::kBild) TANDEM_RETURN_IF_ERROR(check_fields(request.bild));
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan,
                          plan_of(deployment, request.method,
                                  {request.speculative, request.bild, request.beam}, greedy));
  if (plan.contract < request.require_contract) {
    return unsatisfied(deployment, request, plan, greedy);
  }
  return plan;
}

}  // namespace tandem
