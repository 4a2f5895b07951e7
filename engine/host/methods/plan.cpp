#include "engine/host/methods/plan.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "engine/host/methods/cast.h"

namespace tandem {
namespace {

// REQUIRES: the request searches beams.
absl::Status check_beams(const GenerateRequest& request, const MethodPlan& plan) {
  const std::string width = setting_text(*find_setting(request.beam, "width"));
  if (plan.method != kAutoregressive && plan.reader.empty()) {
    return out_of_range("beam.width", width,
                        absl::StrCat("1 with method ", plan.method,
                                     " (beam search needs a model that decodes alone)"));
  }
  const std::string reason = absl::StrCat(" with beam.width ", width);
  if (request.n != 1) return out_of_range("n", request.n, "1" + reason);
  if (const auto t = request.sampling.temperature; t && !(*t <= 0)) {
    return out_of_range("temperature", *t, "0" + reason);
  }
  return absl::OkStatus();
}

// FAILED_PRECONDITION: the method cannot run with the request's adapter.
absl::Status refused_with_lora(const Deployment& d, const GenerateRequest& request, LoraId lora,
                               const std::string& why) {
  std::vector<std::string> others;
  for (const MethodInfo& offer : d.methods) {
    const MethodChoice other{d.compiled.at(offer.method).entry, {}, nullptr, lora};
    if (no_lora(d, other).empty()) others.push_back(offer.method);
  }
  return with_reason(absl::FailedPreconditionError(absl::StrCat(
                         "method: ", request.method, " with adapter ", quote_value(request.adapter),
                         ": ", why, "; offered with an adapter: ", absl::StrJoin(others, ", "))),
                     "METHOD_NOT_OFFERED");
}

// Of a method that the request names.
absl::StatusOr<MethodPlan> plan_named(const Deployment& d, const GenerateRequest& request,
                                      bool greedy) {
  if (!d.offers(request.method)) {
    return not_offered(d, "method", request.method, d.offered());
  }
  const MethodEntry& entry = *d.compiled.at(request.method).entry;
  TANDEM_RETURN_IF_ERROR(check_parameters(entry, request.parameters));
  const MethodChoice choice = choice_of(d, request, entry);
  if (const std::string why = no_lora(d, choice); !why.empty()) {
    return refused_with_lora(d, request, choice.lora, why);
  }
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan, plan_choice(d, choice, greedy));
  plan.method = request.method;
  if (searches_beams(request)) TANDEM_RETURN_IF_ERROR(check_beams(request, plan));
  if (plan.contract < request.require_contract) {
    return unsatisfied(d, request, choice, plan.contract, greedy);
  }
  return plan;
}

}  // namespace

absl::Status check_parameters(const MethodEntry& method, const Settings& asked) {
  Violations wrong;
  for (const Setting& setting : asked) {
    if (const auto refusal = method.check({setting}, Field::By::kRequest)) {
      wrong.add(out_of_range(method.path(refusal->field), refusal->value, refusal->allowed));
    }
  }
  return wrong.status();
}

absl::StatusOr<MethodPlan> plan_method(const Deployment& d, const GenerateRequest& request,
                                       bool greedy, int64_t prompt_tokens) {
  TANDEM_RETURN_IF_ERROR(check_parameters(beam_entry(), request.beam));
  if (request.method != kAuto) return plan_named(d, request, greedy);
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan, plan_auto(d, request, greedy, prompt_tokens));
  if (searches_beams(request)) TANDEM_RETURN_IF_ERROR(check_beams(request, plan));
  return plan;
}

}  // namespace tandem
