#include "engine/host/methods/plan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "engine/host/methods/cast.h"

namespace tandem {
namespace {

// `method`: the one that the request names; null for `auto`.
absl::Status check_beams(const Deployment& d, const GenerateRequest& request,
                         const CompiledMethod* method) {
  if (!searches_beams(request)) return absl::OkStatus();
  const std::string width = setting_text(*find_setting(request.beam, "width"));
  if (method && method->entry->name != kAutoregressive) {
    const auto with_params = method->entry->with(d.config, request.parameters);
    if (!method->variant_of(*with_params).conditioned) {
      return out_of_range("beam.width", width,
                          absl::StrCat("1 with method ", request.method,
                                       " (beam search needs a model that decodes alone)"));
    }
  }
  const std::string reason = absl::StrCat(" with beam.width ", width);
  if (request.n != 1) return out_of_range("n", request.n, "1" + reason);
  if (const auto t = request.sampling.temperature; t && !(*t <= 0)) {
    return out_of_range("temperature", *t, "0" + reason);
  }
  return absl::OkStatus();
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
  if (request.method == kAuto) {
    TANDEM_RETURN_IF_ERROR(check_beams(d, request, nullptr));
    return plan_auto(d, request, greedy, prompt_tokens);
  }
  if (!d.offers(request.method)) {
    return not_offered(d, "method", request.method, d.offered());
  }
  const CompiledMethod& method = d.compiled.at(request.method);
  TANDEM_RETURN_IF_ERROR(check_parameters(*method.entry, request.parameters));
  TANDEM_RETURN_IF_ERROR(check_beams(d, request, &method));
  const MethodChoice choice = choice_of(request, *method.entry);
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan, plan_choice(d, choice, greedy));
  plan.method = request.method;
  if (plan.contract < request.require_contract) {
    return unsatisfied(d, request, choice, plan.contract, greedy);
  }
  return plan;
}

}  // namespace tandem
