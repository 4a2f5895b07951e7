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
#include "engine/decode/beam.h"

namespace tandem {
namespace {

using Methods = std::vector<const MethodEntry*>;

// EXACT is bit for bit. Several rows in a pass are what each alone would be only on a device that
// keeps their bits; elsewhere such a method follows the large model's distribution up to rounding.
Contract promised(const MethodEntry& entry, Contract contract, bool batch_invariant) {
  const bool rounds = contract == Contract::kExact && !entry.rows_alone && !batch_invariant;
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

int64_t room_on(const LoadedModel& model, const RoleModel& role, int width, int extra) {
  const int64_t most = model.shape.max_positions;
  const int64_t rows = std::min(most, model.pool.pages / width * model.pool.page_rows - extra);
  const int page_rows = model.pool.page_rows;
  if (role.frontier_pages(model.shape.layers, page_rows, rows) <= model.pool.frontier_pages) {
    return rows;
  }
  return std::min(rows, model.pool.frontier_pages * page_rows - extra);
}

// Rows of text that each of `width` caches on this model may have, beside `extra` others, wherever
// it runs. Admission counts the same.
int64_t room_of(const LoadedModel& model, const RoleModel& role, int width, int extra) {
  int64_t room = std::numeric_limits<int64_t>::max();
  for (const LoadedModel* m : model.instances()) {
    room = std::min(room, room_on(*m, role, width, extra));
  }
  return room;
}

// Whoever has an encoder reads what that leaves of the source: a role for each.
void add_encoders(const Deployment& deployment, const std::vector<ModelInRole>& wanted,
                  std::vector<RoleModel>* roles) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const LoadedModel* const encoder = deployment.models.at(wanted[i].model)->encoder;
    if (encoder == nullptr || (*roles)[i].sees_all) continue;
    auto known = std::ranges::find(*roles, encoder->id, &RoleModel::model);
    if (known == roles->end()) {
      known = roles->insert(known, RoleModel{Role::kEncoder, encoder->id});
    }
    (*roles)[i].memory = static_cast<int>(known - roles->begin());
  }
}

// What roles are fed with, by their adapters: an encoder in its decoder's place, and with the rows
// of one likewise. REQUIRES: encoders are there.
absl::Status feed_roles(const Deployment& deployment, const MethodEntry& entry,
                        const std::vector<ModelInRole>& wanted, std::vector<RoleModel>* roles) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].fed_by) continue;
    const auto source = std::ranges::find(*roles, *wanted[i].fed_by, &RoleModel::role);
    const AdapterId id = std::exchange((*roles)[i].adapter, AdapterId());
    const AdapterShape& adapter =
        fed_shape(*deployment.models.at(wanted[i].model), wanted[i]).adapters[id.index()];
    RoleModel& fed =
        (*roles)[i].memory < 0 ? (*roles)[i] : (*roles)[static_cast<size_t>((*roles)[i].memory)];
    const bool encoded = source->sees_all || source->memory >= 0;
    fed.adapter = id;
    fed.fed = {static_cast<int>(source - roles->begin()), encoded ? 0 : adapter.layer,
               adapter.replace, adapter.foreign};
    if (source->memory >= 0) fed.fed.role = source->memory;
    if (source->prompt_only && !encoded) {
      const int layers = deployment.large->shape.layers;
      source->to = adapter.layer < layers ? adapter.layer : 0;
    }
    if (!source->prompt_only && deployment.apart()) {
      return lacks(deployment, entry.path("speculative"), "true",
                   "false (its models cannot be taken for each other)");
    }
  }
  return absl::OkStatus();
}

// Rows of the prompt that a role may have that reads for another.
int64_t room_to_read(const Deployment& deployment, const LoadedModel& model,
                     const RoleModel& role) {
  if (!role.sees_all) return room_of(model, role, 1, 0);
  return source_length_of(model, deployment.step_rows);
}

}  // namespace

MethodModels models_of(const Deployment& d) {
  return {.large = d.large->shape,
          .small = d.small ? &d.small->shape : nullptr,
          .large_name = d.config.large,
          .small_name = d.config.small,
          .share_tokens = d.share_tokens,
          .by_name = &d.models,
          .draft_vocabulary = d.draft_vocabulary,
          .early_vocabulary = d.early_vocabulary,
          .acceptance_stats = d.acceptance_stats};
}

namespace {

// What a request is to be planned as, once a method is chosen.
struct Choice {
  const MethodEntry* entry;
  Settings asked;
  const Settings* beams = nullptr;  // of a search in which the small model writes
};
Choice choice_of(const GenerateRequest& request, const MethodEntry& entry) {
  const Settings asked = request.method == kAuto ? Settings() : request.parameters;
  if (!searches_beams(request)) return {&entry, asked};
  if (request.method == kAuto || request.method == kAutoregressive) {
    return {&beam_entry(), request.beam};
  }
  return {&entry, asked, &request.beam};
}

absl::StatusOr<RoleModel> role_of(const Deployment& deployment, const MethodEntry& entry,
                                  const ModelInRole& wanted) {
  const LoadedModel& model = *deployment.models.at(wanted.model);
  RoleModel role{wanted.role, model.id, wanted.to, wanted.frontier_rows};
  role.prompt_only = wanted.prompt_only;
  role.sees_all = wanted.prompt_only && model.encoder != nullptr;
  if (role.sees_all) role.model = model.encoder->id;
  if (wanted.adapter.empty()) return role;
  const ModelShape& shape = fed_shape(model, wanted);
  if (const auto misfit = adapter_misfit(shape, wanted)) {
    return out_of_range(entry.path(misfit->field), misfit->value, misfit->allowed);
  }
  (wanted.masks > 0 ? role.masks : role.adapter) = find_adapter(shape, wanted.adapter);
  return role;
}

// Searches with the small model instead of drawing from it.
void search(const Deployment& deployment, const Settings& beams, MethodPlan* plan) {
  const auto with = beam_entry().with(deployment.config, beams);
  const Settings settings = with->settings();
  BeamParams a;
  a.width = static_cast<int>(std::get<int64_t>(*find_setting(settings, "width")));
  a.length_penalty =
      static_cast<float>(std::get<double>(*find_setting(settings, "length_penalty")));
  a.writer = Role::kSmall;
  plan->start = [a](Gen g) { return beam(g, a); };
  plan->width = with->width();
}

// A method with the parameters of a request, planned on a deployment's models.
absl::StatusOr<MethodPlan> plan_of(const Deployment& deployment, const Choice& choice,
                                   bool greedy) {
  const MethodEntry& entry = *choice.entry;
  const auto method = entry.with(deployment.config, choice.asked);
  const MethodNeeds needs = method->needs(deployment.config);
  if (needs.lacking) {
    return lacks(deployment, entry.path(needs.lacking->field), needs.lacking->value,
                 needs.lacking->allowed);
  }
  MethodPlan plan;
  plan.method = entry.name;
  plan.contract =
      promised(entry, method->contract(greedy), deployment.large->shape.batch_invariant);
  plan.start = method->start(models_of(deployment));
  plan.width = method->width();
  plan.extra_rows = method->extra_rows();
  if (choice.beams) search(deployment, *choice.beams, &plan);
  plan.context_length = std::numeric_limits<int64_t>::max();
  for (const ModelInRole& wanted : needs.models) {
    const LoadedModel& model = *deployment.models.at(wanted.model);
    TANDEM_ASSIGN_OR_RETURN(const RoleModel role, role_of(deployment, entry, wanted));
    plan.roles.push_back(role);
    if (!deployment.can_run(model)) plan.available = false;
    if (wanted.fed_by) plan.writer = model.config.name;
  }
  add_encoders(deployment, needs.models, &plan.roles);
  TANDEM_RETURN_IF_ERROR(feed_roles(deployment, entry, needs.models, &plan.roles));
  for (size_t i = 0; i < needs.models.size(); ++i) {
    const LoadedModel& model = *deployment.models.at(needs.models[i].model);
    const RoleModel& role = plan.roles[i];
    if (role.prompt_only) {
      plan.reader = model.config.name;
      plan.prompt_length = std::min(plan.prompt_length, room_to_read(deployment, model, role));
      continue;
    }
    plan.context_length =
        std::min(plan.context_length, room_of(model, role, plan.width, plan.extra_rows));
  }
  return plan;
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
  if (promised(entry, required, deployment.large->shape.batch_invariant) == required) {
    const bool at_zero = !greedy && entry.with(config, method.asked)->contract(true) >= required;
    if (at_zero) out.emplace_back("temperature 0");
    const std::vector<Settings> none;
    for (const Settings& change : deployment.apart() ? none : entry.stricter) {
      const Settings enough = enough_of(config, method, change, required, greedy);
      if (!enough.empty()) {
        out.push_back(text(enough));
      } else if (!greedy && !at_zero) {
        const Settings then = enough_of(config, method, change, required, true);
        if (!then.empty()) out.push_back("temperature 0 with " + text(then));
      }
    }
  }
  if (&entry == &beam_entry() || method.beams) return out;  // no search gives more
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

// Does a small model that is told what the large one reads write, and nobody verify it?
bool writes_alone(const Deployment& deployment, const GenerateRequest& request,
                  const Methods& methods) {
  const MethodEntry* const entry = find(methods, request.method);
  if (entry == nullptr || !check_parameters(*entry, request.parameters).ok()) return false;
  const MethodNeeds needs =
      entry->with(deployment.config, request.parameters)->needs(deployment.config);
  return std::ranges::any_of(needs.models, &ModelInRole::prompt_only);
}

absl::Status check_beams(const Deployment& deployment, const GenerateRequest& request,
                         const Methods& methods) {
  TANDEM_RETURN_IF_ERROR(check_parameters(beam_entry(), request.beam));
  if (!searches_beams(request)) return absl::OkStatus();
  const std::string width = setting_text(*find_setting(request.beam, "width"));
  const bool plain = request.method == kAuto || request.method == kAutoregressive;
  if (!plain && !writes_alone(deployment, request, methods)) {
    return out_of_range("beam.width", width,
                        absl::StrCat("1 with method ", request.method,
                                     " (beam search is one model's that writes alone)"));
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
    // Its tokens are those that the prompt was cut into.
    if (deployment.small_writes(offer.method) != deployment.small_writes(request)) continue;
    const Choice method =
        automatic_choice(deployment.config, request, *find(methods, offer.method));
    TANDEM_ASSIGN_OR_RETURN(MethodPlan plan, plan_of(deployment, method, greedy));
    plan.method = offer.method;
    // Where no other method can follow, it is the request that asks too much.
    const bool last = offer.method == kAutoregressive || deployment.small_writes(offer.method);
    const bool sound = last || (plan.available && plan.context_length >= rows);
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

std::vector<MethodInfo> offered_methods(const DeploymentConfig& config, bool batch_invariant,
                                        const Methods& methods, const std::string& told_method) {
  std::vector<MethodInfo> offered;
  for (const MethodEntry* entry : methods) {
    const bool either = entry->name == kAutoregressive || entry->name == told_method;
    if (!told_method.empty() && !either) continue;
    const auto method = entry->with(config, {});
    if (method->needs(config).lacking) continue;
    MethodInfo& info = offered.emplace_back();
    info.method = entry->name;
    info.greedy = promised(*entry, method->contract(true), batch_invariant);
    info.sampled = promised(*entry, method->contract(false), batch_invariant);
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
  TANDEM_RETURN_IF_ERROR(check_beams(deployment, request, methods));
  if (request.method == kAuto) {
    return plan_auto(deployment, request, greedy, prompt_tokens, methods);
  }
  if (!deployment.offers(request.method)) {
    return lacks(deployment, "method", request.method, deployment.offered());
  }
  const MethodEntry& entry = *find(methods, request.method);
  TANDEM_RETURN_IF_ERROR(check_parameters(entry, request.parameters));
  const Choice method = choice_of(request, entry);
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan, plan_of(deployment, method, greedy));
  plan.method = request.method;
  if (plan.contract < request.require_contract) {
    return unsatisfied(deployment, request, method, plan.contract, greedy);
  }
  return plan;
}

}  // namespace tandem
