#include "engine/host/methods.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"

namespace tandem {
namespace {

using Methods = std::vector<const MethodEntry*>;

// EXACT is bit for bit. Several rows in a pass are what each alone would be only on a device that
// keeps their bits; elsewhere such a method follows the large model's distribution up to rounding.
Contract promised(const MethodEntry& entry, Contract contract, bool keeps_row_bits) {
  const bool rounds = contract == Contract::kExact && !entry.rows_alone && !keeps_row_bits;
  return rounds ? Contract::kDistribution : contract;
}

const MethodEntry* find(const Methods& methods, absl::string_view name) {
  const auto it = std::find_if(methods.begin(), methods.end(),
                               [&](const MethodEntry* m) { return m->name == name; });
  return it == methods.end() ? nullptr : *it;
}

absl::Status lacks(const Deployment& deployment, absl::string_view field, absl::string_view value,
                   absl::string_view offered) {
  return with_reason(
      absl::FailedPreconditionError(absl::StrCat(field, ": ", value, "; offered by model \"",
                                                 deployment.name, "\": ", offered)),
      "METHOD_NOT_OFFERED");
}

// Rows of text that each of `width` caches on this model may have, beside `extra` others. Admission
// counts the same.
int64_t room_of(const LoadedModel& model, const RoleModel& role, int width, int extra) {
  const int64_t most = model.shape.max_positions;
  const int64_t rows = std::min(most, model.pool.pages / width * model.pool.page_rows - extra);
  const int page_rows = model.pool.page_rows;
  if (role.frontier_pages(model.shape.layers, page_rows, rows) <= model.pool.frontier_pages) {
    return rows;
  }
  return std::min(rows, model.pool.frontier_pages * page_rows - extra);
}

// What roles are fed with, by their adapters.
absl::Status feed_roles(const Deployment& deployment, const MethodEntry& entry,
                        const std::vector<ModelInRole>& wanted, std::vector<RoleModel>* roles) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].fed_by) continue;
    const auto source = std::ranges::find(*roles, *wanted[i].fed_by, &RoleModel::role);
    RoleModel& role = (*roles)[i];
    const AdapterShape& adapter =
        deployment.models.at(wanted[i].model)->shape.adapters[role.adapter.index()];
    role.fed = {static_cast<int>(source - roles->begin()), adapter.layer, adapter.replace,
                adapter.foreign};
    if (source->prompt_only) {
      const int layers = deployment.large->shape.layers;
      source->to = adapter.layer < layers ? adapter.layer : 0;
    } else if (adapter.foreign) {
      return lacks(deployment, entry.path("speculative"), "true",
                   "false (its models have different vocabularies)");
    }
  }
  return absl::OkStatus();
}

// Whoever has an encoder reads what that leaves of the source: a role for each.
void add_encoders(const Deployment& deployment, const std::vector<ModelInRole>& wanted,
                  std::vector<RoleModel>* roles) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const LoadedModel* const encoder = deployment.models.at(wanted[i].model)->encoder;
    if (encoder == nullptr) continue;
    auto known = std::ranges::find(*roles, encoder->id, &RoleModel::model);
    if (known == roles->end()) {
      known = roles->insert(known, RoleModel{Role::kEncoder, encoder->id});
    }
    (*roles)[i].memory = static_cast<int>(known - roles->begin());
  }
}

}  // namespace

MethodModels models_of(const Deployment& d) {
  return {d.large->shape, d.small ? &d.small->shape : nullptr, d.config.large, &d.models};
}

namespace {

// A method with the parameters of a request, planned on a deployment's models.
absl::StatusOr<MethodPlan> plan_of(const Deployment& deployment, const MethodEntry& entry,
                                   const Settings& asked, bool greedy) {
  const auto method = entry.with(deployment.config, asked);
  const MethodNeeds needs = method->needs(deployment.config);
  if (needs.lacking) {
    return lacks(deployment, entry.path(needs.lacking->field), needs.lacking->value,
                 needs.lacking->allowed);
  }
  MethodPlan plan;
  plan.method = entry.name;
  plan.contract = promised(entry, method->contract(greedy), deployment.large->shape.keeps_row_bits);
  plan.start = method->start(models_of(deployment));
  plan.width = method->width();
  plan.extra_rows = method->extra_rows();
  for (const ModelInRole& role : needs.models) {
    const LoadedModel& model = *deployment.models.at(role.model);
    RoleModel use{role.role, model.id, role.to, role.frontier_rows};
    if (!role.adapter.empty()) {
      if (const auto misfit = adapter_misfit(model.shape, role)) {
        return out_of_range(entry.path(misfit->field), misfit->value, misfit->allowed);
      }
      (role.masks > 0 ? use.masks : use.adapter) = find_adapter(model.shape, role.adapter);
    }
    use.prompt_only = role.prompt_only;
    plan.roles.push_back(use);
    if (!deployment.can_run(model)) plan.available = false;
  }
  TANDEM_RETURN_IF_ERROR(feed_roles(deployment, entry, needs.models, &plan.roles));
  plan.context_length = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < needs.models.size(); ++i) {
    const LoadedModel& model = *deployment.models.at(needs.models[i].model);
    int64_t room = std::numeric_limits<int64_t>::max();
    for (const LoadedModel* m : model.instances()) {
      room = std::min(room, room_of(*m, plan.roles[i], plan.width, plan.extra_rows));
    }
    int64_t& length = plan.roles[i].prompt_only ? plan.prompt_length : plan.context_length;
    length = std::min(length, room);
    if (plan.roles[i].prompt_only) plan.reader = model.config.name;
    if (needs.models[i].fed_by) plan.writer = model.config.name;
  }
  add_encoders(deployment, needs.models, &plan.roles);
  return plan;
}

// What a request is to be planned as, once a method is chosen.
struct Choice {
  const MethodEntry* entry;
  Settings asked;
};
Choice choice_of(const GenerateRequest& request, const MethodEntry& entry) {
  if (searches_beams(request)) return {&beam_entry(), request.beam};
  return {&entry, request.method == kAuto ? Settings() : request.parameters};
}

// The same for a request that leaves the choice to the engine. A deployment that names its default
// has that as it says; else the method drafts as far as drafts pay.
Choice automatic_choice(const DeploymentConfig& config, const GenerateRequest& request,
                        const MethodEntry& entry) {
  Choice choice = choice_of(request, entry);
  if (choice.entry != &entry || !config.default_method.empty()) return choice;
  const auto set = config.methods.find(entry.name);
  for (const Setting& s : entry.automatic) {
    const bool theirs = set != config.methods.end() && find_setting(set->second, s.name);
    if (!theirs) choice.asked.push_back(s);
  }
  return choice;
}

// What `auto` means where the deployment does not say: the first method that drafts as far as that
// pays and whose tokens are the large model's own, sampled or not.
std::string default_of(const DeploymentConfig& config, const Methods& methods,
                       const std::vector<MethodInfo>& offered) {
  if (!config.default_method.empty()) return config.default_method;
  for (const MethodInfo& info : offered) {
    const bool exact = info.greedy == Contract::kExact && info.sampled == Contract::kExact;
    if (exact && !find(methods, info.method)->automatic.empty()) return info.method;
  }
  return kAutoregressive;
}

// The fewest of `change` that bring `method` to `required`; none where all of them do not.
Settings enough_of(const DeploymentConfig& config, const Choice& method, Settings change,
                   Contract required, bool greedy) {
  const auto gives = [&](const Settings& some) {
    Settings all = some;
    for (const Setting& s : method.asked) {
      if (!find_setting(some, s.name)) all.push_back(s);
    }
    return method.entry->with(config, all)->contract(greedy) >= required;
  };
  if (!gives(change)) return {};
  for (size_t i = 0; i < change.size();) {
    Settings without = change;
    without.erase(without.begin() + static_cast<ptrdiff_t>(i));
    if (gives(without)) {
      change = std::move(without);
    } else {
      ++i;
    }
  }
  return change;
}

// What would give the contract that `method` does not give: found by asking the entries.
std::vector<std::string> remedies(const Deployment& deployment, const Choice& method,
                                  Contract required, bool greedy) {
  const DeploymentConfig& config = deployment.config;
  const MethodEntry& entry = *method.entry;
  const auto text = [&](const Settings& settings) {
    return absl::StrJoin(settings, " and ", [&](std::string* out, const Setting& s) {
      absl::StrAppend(out, entry.path(s.name), " ", setting_text(s.value));
    });
  };
  std::vector<std::string> out;
  if (promised(entry, required, deployment.large->shape.keeps_row_bits) == required) {
    const bool at_zero = !greedy && entry.with(config, method.asked)->contract(true) >= required;
    if (at_zero) out.emplace_back("temperature 0");
    for (const Settings& change : entry.stricter) {
      const Settings enough = enough_of(config, method, change, required, greedy);
      if (!enough.empty()) {
        out.push_back(text(enough));
      } else if (!greedy && !at_zero) {
        const Settings then = enough_of(config, method, change, required, true);
        if (!then.empty()) out.push_back("temperature 0 with " + text(then));
      }
    }
  }
  if (&entry == &beam_entry()) return out;  // no other method searches
  for (const MethodInfo& offer : deployment.methods) {
    const Contract contract = greedy ? offer.greedy : offer.sampled;
    if (offer.method != entry.name && contract >= required) out.push_back("method " + offer.method);
  }
  return out;
}

absl::Status unsatisfied(const Deployment& deployment, const GenerateRequest& request,
                         const Choice& method, Contract given, bool greedy) {
  const bool rounds =
      method.entry->with(deployment.config, method.asked)->contract(greedy) != given;
  const std::string why = absl::StrCat(
      "require_contract: ", contract_name(request.require_contract), "; ", method.entry->name,
      greedy ? "" : " with a temperature above 0",
      rounds ? absl::StrCat(" on ", deployment.large->config.device,
                            ", where a row's bits depend on the rows beside it,")
             : "",
      " gives ", contract_name(given), "; needed: ",
      absl::StrJoin(remedies(deployment, method, request.require_contract, greedy), ", or "));
  return with_reason(absl::FailedPreconditionError(why), "CONTRACT_NOT_SATISFIABLE");
}

absl::Status check_beams(const GenerateRequest& request) {
  TANDEM_RETURN_IF_ERROR(check_parameters(beam_entry(), request.beam));
  if (!searches_beams(request)) return absl::OkStatus();
  const std::string width = setting_text(*find_setting(request.beam, "width"));
  if (request.method != kAuto && request.method != kAutoregressive) {
    return out_of_range(
        "beam.width", width,
        absl::StrCat("1 with method ", request.method, " (beam search is autoregressive)"));
  }
  const std::string reason = absl::StrCat(" with beam.width ", width);
  if (request.n != 1) return out_of_range("n", request.n, "1" + reason);
  if (const auto t = request.sampling.temperature; t && !(*t <= 0)) {
    return out_of_range("temperature", *t, "0" + reason);
  }
  return absl::OkStatus();
}

// The first offered method that gives the contract and has the room.
absl::StatusOr<MethodPlan> plan_auto(const Deployment& deployment, const GenerateRequest& request,
                                     bool greedy, int64_t prompt_tokens, const Methods& methods) {
  // An answer is not cut shorter because a small model has less room than the large one.
  const int64_t answer =
      std::min(deployment.context_length,
               request.stopping.max_new_tokens.value_or(deployment.default_max_new_tokens));
  const int64_t rows = std::min(deployment.context_length, prompt_tokens + answer);
  for (const MethodInfo& offer : deployment.methods) {
    if (searches_beams(request) && offer.method != kAutoregressive) continue;
    const Choice method =
        automatic_choice(deployment.config, request, *find(methods, offer.method));
    TANDEM_ASSIGN_OR_RETURN(MethodPlan plan,
                            plan_of(deployment, *method.entry, method.asked, greedy));
    plan.method = offer.method;
    const bool sound =
        (plan.available && plan.context_length >= rows) ||
        offer.method == kAutoregressive;  // then it is the request that asks too much
    if (plan.contract >= request.require_contract && sound) return plan;
  }
  // Autoregressive decoding would do, but for what is asked of it.
  return unsatisfied(deployment, request, choice_of(request, *find(methods, kAutoregressive)),
                     Contract::kLossy, greedy);
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

bool searches_beams(const GenerateRequest& request) {
  const SettingValue* width = find_setting(request.beam, "width");
  const auto* whole = width ? std::get_if<int64_t>(width) : nullptr;
  return whole && *whole > 1;
}

std::vector<MethodInfo> offered_methods(const DeploymentConfig& config, bool keeps_row_bits,
                                        const Methods& methods) {
  std::vector<MethodInfo> offered;
  for (const MethodEntry* entry : methods) {
    const auto method = entry->with(config, {});
    if (method->needs(config).lacking) continue;
    MethodInfo& info = offered.emplace_back();
    info.method = entry->name;
    info.greedy = promised(*entry, method->contract(true), keeps_row_bits);
    info.sampled = promised(*entry, method->contract(false), keeps_row_bits);
    info.parameters = method->settings();
  }
  const std::string named = default_of(config, methods, offered);
  const auto first = std::find_if(offered.begin(), offered.end(),
                                  [&](const MethodInfo& m) { return m.method == named; });
  if (first != offered.end()) std::rotate(offered.begin(), first, first + 1);
  return offered;
}

absl::StatusOr<MethodPlan> plan_method(const Deployment& deployment, const GenerateRequest& request,
                                       bool greedy, int64_t prompt_tokens, const Methods& methods) {
  TANDEM_RETURN_IF_ERROR(check_beams(request));
  if (request.method == kAuto) {
    return plan_auto(deployment, request, greedy, prompt_tokens, methods);
  }
  if (!deployment.offers(request.method)) {
    return lacks(deployment, "method", request.method, deployment.offered());
  }
  const MethodEntry& entry = *find(methods, request.method);
  TANDEM_RETURN_IF_ERROR(check_parameters(entry, request.parameters));
  const Choice method = choice_of(request, entry);
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan,
                          plan_of(deployment, *method.entry, method.asked, greedy));
  plan.method = request.method;
  if (plan.contract < request.require_contract) {
    return unsatisfied(deployment, request, method, plan.contract, greedy);
  }
  return plan;
}

}  // namespace tandem
