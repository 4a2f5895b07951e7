#include "engine/host/methods/compile.h"

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/decode/beam.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/cast.h"

namespace tandem {
namespace {

std::string default_of(const DeploymentConfig& config, const std::vector<DeclaredMethod>& declared,
                       const std::vector<MethodInfo>& offers) {
  if (!config.default_method.empty()) return config.default_method;
  for (size_t i = 0; i < declared.size(); ++i) {
    const bool exact =
        std::min(offers[i].greedy, offers[i].sampled) >= Contract::kExactUpToRounding;
    if (exact && !declared[i].entry->automatic.empty()) return offers[i].method;
  }
  return kAutoregressive;
}

absl::Status compile_roles(const Deployment& d, const MethodEntry& entry, MethodVariant* out) {
  for (const ModelInRole& model : out->needs) {
    if (model.conditioned_by) out->writer = model.model;
  }
  TANDEM_ASSIGN_OR_RETURN(out->cast, cast_of(d, entry, out->needs));
  for (size_t i = 0; i < out->needs.size(); ++i) {
    const CastRole& role = out->cast->roles[i];
    if (!role.prompt_only) continue;
    const LoadedModel& model = *d.models.at(out->needs[i].model);
    out->reader = out->needs[i].model;
    out->prompt_length = std::min(out->prompt_length, prompt_capacity(d, model, role));
  }
  return absl::OkStatus();
}

MethodVariant compile_variant(const Deployment& d, const MethodEntry& entry,
                              std::vector<ModelInRole> needs) {
  MethodVariant out;
  out.needs = std::move(needs);
  out.status = compile_roles(d, entry, &out);
  return out;
}

CompiledMethod compile(const Deployment& d, const DeclaredMethod& method) {
  const MethodEntry& entry = *method.entry;
  CompiledMethod out{&entry, {compile_variant(d, entry, method.needs.models)}};
  if (entry.variant.empty()) return out;
  for (const bool value : {false, true}) {
    MethodNeeds needs = entry.with(d.config, {{entry.variant, value}})->needs(d.config);
    if (needs.lacking || needs.models == method.needs.models) continue;
    out.variants.push_back(compile_variant(d, entry, std::move(needs.models)));
  }
  return out;
}

// The adapter through which one model of a method conditions another.
const AdapterShape* adapter_of(const Deployment& d, const MethodNeeds& needs) {
  for (const ModelInRole& role : needs.models) {
    if (!role.conditioned_by) continue;
    const ModelShape& shape = adapter_owner(*d.models.at(role.model), role);
    return &shape.adapters[find_adapter(shape, role.adapter).index()];
  }
  return nullptr;
}

// Beam search by the model that answers, in place of the method's own coroutine.
void plan_beams(const Deployment& d, const Settings& beams, MethodPlan* plan) {
  const auto method = beam_entry().with(d.config, beams);
  const Settings settings = method->settings();
  BeamParams a;
  a.width = static_cast<int>(std::get<int64_t>(*find_setting(settings, "width")));
  a.length_penalty =
      static_cast<float>(std::get<double>(*find_setting(settings, "length_penalty")));
  a.writer = Role::kSmall;
  plan->start = [a](Gen g) { return beam(g, a); };
  plan->width = method->width();
}

}  // namespace

Contract contract_on(const MethodEntry& entry, Contract contract, bool batch_invariant) {
  const bool rounds = contract == Contract::kExact && !entry.single_row_passes && !batch_invariant;
  return rounds ? Contract::kExactUpToRounding : contract;
}

std::string no_lora(const Deployment& d, const MethodChoice& choice) {
  if (!choice.lora.valid()) return "";
  return choice.entry->with(d.config, choice.parameters)->no_lora();
}

std::vector<MethodInfo> offers_of(const DeploymentConfig& config,
                                  const std::vector<DeclaredMethod>& declared,
                                  bool batch_invariant) {
  std::vector<MethodInfo> offers;
  for (const DeclaredMethod& d : declared) {
    const auto method = d.entry->with(config, {});
    offers.push_back({d.entry->name, contract_on(*d.entry, method->contract(true), batch_invariant),
                      contract_on(*d.entry, method->contract(false), batch_invariant),
                      method->settings(), !method->no_lora().empty()});
  }
  const auto first =
      std::ranges::find(offers, default_of(config, declared, offers), &MethodInfo::method);
  if (first != offers.end()) std::rotate(offers.begin(), first, first + 1);
  return offers;
}

void compile_methods(const std::vector<DeclaredMethod>& declared, Deployment* d) {
  std::vector<DeclaredMethod> offered;
  for (const DeclaredMethod& method : declared) {
    const std::string& name = method.entry->name;
    const bool conditioning = d->conditioned_only() && name == d->conditioning->method;
    if (conditioning) d->conditioning->adapter = adapter_of(*d, method.needs);
    if (d->conditioned_only() && !conditioning && name != kAutoregressive) continue;
    offered.push_back(method);
    d->compiled[name] = compile(*d, method);
  }
  const MethodEntry& beams = beam_entry();
  d->compiled[beams.name] = compile(*d, {&beams, beams.with(d->config, {})->needs(d->config)});
  d->methods = offers_of(d->config, offered, d->large->shape.batch_invariant);
}

absl::StatusOr<MethodPlan> plan_choice(const Deployment& d, const MethodChoice& choice,
                                       bool greedy) {
  const MethodEntry& entry = *choice.entry;
  const auto method = entry.with(d.config, choice.parameters);
  const MethodNeeds needs = method->needs(d.config);
  if (needs.lacking) {
    return not_offered(d, entry.path(needs.lacking->field), needs.lacking->value,
                       needs.lacking->allowed);
  }
  // Few parameters change the roles; they are compiled for the request.
  const CompiledMethod& compiled = d.compiled.at(entry.name);
  const auto known = std::ranges::find(compiled.variants, needs.models, &MethodVariant::needs);
  MethodVariant variant =
      known != compiled.variants.end() ? *known : compile_variant(d, entry, needs.models);
  TANDEM_RETURN_IF_ERROR(variant.status);

  MethodPlan plan;
  plan.method = entry.name;
  plan.contract = contract_on(entry, method->contract(greedy), d.large->shape.batch_invariant);
  plan.start = method->start(d, choice.lora);
  plan.width = method->width();
  plan.extra_rows = method->extra_rows();
  if (choice.beams) plan_beams(d, *choice.beams, &plan);
  plan.cast = choice.lora.valid() ? with_lora(*variant.cast, choice.lora) : variant.cast;
  plan.prompt_length = variant.prompt_length;
  plan.reader = variant.reader;
  plan.writer = variant.writer;
  plan.context_length = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < variant.needs.size(); ++i) {
    const LoadedModel& model = *d.models.at(variant.needs[i].model);
    const CastRole& role = plan.cast->roles[i];
    if (!d.can_run(model)) plan.available = false;
    if (role.prompt_only) continue;
    plan.context_length =
        std::min(plan.context_length, text_capacity(model, role, plan.width, plan.extra_rows));
  }
  return plan;
}

}  // namespace tandem
