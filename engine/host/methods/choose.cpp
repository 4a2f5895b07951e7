#include "engine/host/methods/choose.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// For `auto`. A deployment that names its default method also sets its parameters. Else the entry's
// settings for `auto` apply where the deployment has none.
MethodChoice automatic_choice(const Deployment& d, const GenerateRequest& request,
                              const MethodEntry& entry) {
  MethodChoice choice = choice_of(d, request, entry);
  if (choice.entry != &entry || !d.config.default_method.empty()) return choice;
  const auto set = d.config.methods.find(entry.name);
  for (const Setting& s : entry.automatic) {
    const bool is_set = set != d.config.methods.end() && find_setting(set->second, s.name);
    if (!is_set) choice.parameters.push_back(s);
  }
  return choice;
}

// The fewest settings of `change` with which `choice` gives `required`. Empty: all of them do not.
Settings fewest_of(const DeploymentConfig& config, const MethodChoice& choice, Settings change,
                   Contract required, bool greedy) {
  const auto gives = [&](const Settings& some) {
    Settings all = some;
    for (const Setting& s : choice.parameters) {
      if (!find_setting(some, s.name)) all.push_back(s);
    }
    return choice.entry->with(config, all)->contract(greedy) >= required;
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

// Changes of the method's own parameters, and of the temperature, that give `required`.
std::vector<std::string> own_remedies(const Deployment& d, const MethodChoice& choice,
                                      Contract required, bool greedy) {
  const MethodEntry& entry = *choice.entry;
  const auto text = [&](const Settings& settings) {
    return absl::StrJoin(settings, " and ", [&](std::string* out, const Setting& s) {
      absl::StrAppend(out, entry.path(s.name), " ", setting_text(s.value));
    });
  };
  std::vector<std::string> out;
  if (contract_on(entry, required, d.large->shape.batch_invariant) != required) return out;
  const bool at_zero =
      !greedy && entry.with(d.config, choice.parameters)->contract(true) >= required;
  if (at_zero) out.emplace_back("temperature 0");
  if (d.conditioned_only()) return out;
  for (const Settings& change : entry.stricter) {
    const Settings now = fewest_of(d.config, choice, change, required, greedy);
    if (!now.empty()) {
      out.push_back(text(now));
    } else if (!greedy && !at_zero) {
      const Settings at = fewest_of(d.config, choice, change, required, true);
      if (!at.empty()) out.push_back("temperature 0 with " + text(at));
    }
  }
  return out;
}

}  // namespace

MethodChoice choice_of(const Deployment& d, const GenerateRequest& request,
                       const MethodEntry& entry) {
  const AdapterRef adapter = d.adapter_of(request);
  const LoraId lora = adapter ? adapter->id : LoraId();
  const Settings parameters = request.method == kAuto ? Settings() : request.parameters;
  if (!searches_beams(request)) return {&entry, parameters, nullptr, lora};
  if (request.method == kAuto || request.method == kAutoregressive) {
    return {&beam_entry(), request.beam, nullptr, lora};
  }
  return {&entry, parameters, &request.beam, lora};
}

absl::StatusOr<MethodPlan> plan_auto(const Deployment& d, const GenerateRequest& request,
                                     bool greedy, int64_t prompt_tokens) {
  // A small model with a shorter context than the large one must not shorten the answer.
  const int64_t answer = std::min(
      d.context_length, request.stopping.max_new_tokens.value_or(d.unset_max_new_tokens(request)));
  const int64_t rows = std::min(d.context_length, prompt_tokens + answer);
  for (const MethodInfo& offer : d.methods) {
    if (searches_beams(request) && offer.method != kAutoregressive) continue;
    // The prompt is in the tokens of one of the models.
    const bool small_tokens = d.answers_in_small_tokens(offer.method);
    if (small_tokens != d.answers_in_small_tokens(request)) continue;
    const MethodEntry& entry = *d.compiled.at(offer.method).entry;
    const MethodChoice choice = automatic_choice(d, request, entry);
    if (!no_lora(d, choice).empty()) continue;
    TANDEM_ASSIGN_OR_RETURN(MethodPlan plan, plan_choice(d, choice, greedy));
    plan.method = offer.method;
    // No method follows these. If they lack room, the request is too long.
    const bool last = offer.method == kAutoregressive || small_tokens;
    const bool fits = last || (plan.available && plan.context_length >= rows);
    if (plan.contract >= request.require_contract && fits) return plan;
  }
  // Only beam search keeps autoregressive decoding from the contract.
  const MethodEntry& autoregressive = *d.compiled.at(kAutoregressive).entry;
  return unsatisfied(d, request, choice_of(d, request, autoregressive), Contract::kLossy, greedy);
}

absl::Status unsatisfied(const Deployment& d, const GenerateRequest& request,
                         const MethodChoice& choice, Contract given, bool greedy) {
  const Contract required = request.require_contract;
  std::vector<std::string> needed = own_remedies(d, choice, required, greedy);
  const bool beams = choice.entry == &beam_entry() || choice.beams;  // of no method more than LOSSY
  for (const MethodInfo& offer : d.methods) {
    if (beams || offer.method == choice.entry->name) continue;
    if ((greedy ? offer.greedy : offer.sampled) < required) continue;
    if (!no_lora(d, {d.compiled.at(offer.method).entry, {}, nullptr, choice.lora}).empty())
      continue;
    needed.push_back("method " + offer.method);
  }
  const bool rounds = choice.entry->with(d.config, choice.parameters)->contract(greedy) != given;
  return with_reason(
      absl::FailedPreconditionError(absl::StrCat(
          "require_contract: ", contract_name(required), "; ", choice.entry->name,
          greedy ? "" : " with a temperature above 0",
          rounds ? absl::StrCat(" on ", d.large->config.device, ", which is not batch-invariant,")
                 : "",
          " gives ", contract_name(given), "; needed: ", absl::StrJoin(needed, ", or "))),
      "CONTRACT_NOT_SATISFIABLE");
}

}  // namespace tandem
