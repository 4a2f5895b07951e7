#include "engine/host/deployment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/text_history.h"
#include "engine/host/methods/declare.h"
#include "engine/host/models/pair.h"

namespace tandem {
namespace {

using Declared = std::vector<DeclaredMethod>;
using Models = std::map<std::string, LoadedModel>;

// A token stands for at least this many bytes, whatever the vocabulary: normalizers shorten text
// (blanks, full-width letters), and an unknown word may be one token.
constexpr int64_t kLeastPiece = 16;

std::string field_of(const Deployment& d, absl::string_view field) {
  return absl::StrCat("deployments[", d.name, "].", field);
}

absl::Status refused(const Deployment& d, const MethodEntry& method, const Refusal& why) {
  return out_of_range(field_of(d, method.path(why.field)), why.value, why.allowed);
}

// Looks up the models that methods need besides the large and the small one.
absl::Status add_models(const Models& models, const Declared& declared, Deployment* d) {
  for (const DeclaredMethod& method : declared) {
    for (const ModelInRole& role : method.needs.models) {
      if (d->models.contains(role.model)) continue;
      const auto known = models.find(role.model);
      if (known == models.end()) {
        const auto name = [](std::string* out, const auto& m) { out->append(m.first); };
        return refused(*d, *method.entry,
                       {role.field, quote_value(role.model),
                        absl::StrCat("names of models: ", absl::StrJoin(models, ", ", name))});
      }
      d->models[role.model] = &known->second;
    }
  }
  return absl::OkStatus();
}

std::optional<Refusal> no_adapter(const std::string& field, const std::string& asked,
                                  const ModelShape& shape, const std::string& model) {
  if (asked.empty() || find_adapter(shape, asked).valid()) return std::nullopt;
  const auto name = [](std::string* out, const AdapterShape& a) { out->append(a.name); };
  const std::string names = absl::StrJoin(shape.adapters, ", ", name);
  return Refusal{field, quote_value(asked),
                 absl::StrCat(names.empty() ? "none" : names,
                              ", the adapters among the extras of model ", model)};
}

std::optional<Refusal> adapter_refusal(const Deployment& d, const ModelInRole& role) {
  const LoadedModel& model = *d.models.at(role.model);
  if (auto why = no_adapter("adapter", role.adapter, adapter_owner(model, role), role.model)) {
    return why;
  }
  if (auto why = no_adapter(role.mask_field, role.mask_adapter, model.shape, role.model)) {
    return why;
  }
  return role.mask_adapter.empty() ? std::nullopt : masks_misfit(model.shape, role);
}

// Checks the methods' settings against the loaded models.
absl::Status check_methods(const Declared& declared, const Deployment& d) {
  for (const MethodEntry* entry : all_methods()) {
    for (const DeclaredMethod& method : declared) {
      if (method.entry != entry) continue;
      for (const ModelInRole& role : method.needs.models) {
        if (const auto why = adapter_refusal(d, role)) return refused(d, *entry, *why);
      }
    }
    if (const auto why = entry->misfit(d)) return refused(d, *entry, *why);
  }
  return absl::OkStatus();
}

std::vector<std::string> notices_of(const Deployment& d) {
  std::vector<std::string> all;
  for (const MethodEntry* method : all_methods()) {
    for (const std::string& notice : method->notices(d)) {
      all.push_back(absl::StrCat(field_of(d, method->name), ": ", notice));
    }
  }
  return all;
}

// A model that only embeds is alone in its deployment.
absl::Status check_embeds_only(const Deployment& d) {
  for (const auto& [name, model] : d.models) {
    if (!model->shape.embeds_only || d.models.size() == 1) continue;
    return out_of_range(absl::StrCat("deployments[", d.name, "]: models next to ", name),
                        d.models.size() - 1, "none, as it only embeds");
  }
  return absl::OkStatus();
}

// Whether large and small model can be used for each other's tokens. If not, one must condition the
// other.
absl::Status join_pair(const Declared& declared, Deployment* d) {
  const std::string field = field_of(*d, "small");
  const absl::Status tokens = check_same_tokens(field, *d->large, *d->small);
  const absl::Status kind = check_same_kind(field, *d->large, *d->small);
  d->share_tokens = tokens.ok();
  if (tokens.ok() && kind.ok()) return absl::OkStatus();
  const auto conditions = [](const DeclaredMethod& method) {
    return std::ranges::any_of(method.needs.models, [](const ModelInRole& role) {
      return role.conditioned_by.has_value();
    });
  };
  const auto method = std::ranges::find_if(declared, conditions);
  if (method == declared.end()) return tokens.ok() ? kind : tokens;
  if (!method->needs.models.front().prompt_only) {
    return refused(
        *d, *method->entry,
        {"speculative", "true",
         absl::StrCat("false, as ", d->small->config.name, " and ", d->large->config.name,
                      tokens.ok() ? " read the prompt differently" : " have different tokens")});
  }
  d->conditioning = {method->entry->name};
  return absl::OkStatus();
}

void set_lengths(const LimitsConfig& limits, Deployment* d) {
  d->step_rows = limits.step_rows;
  d->context_length = std::min<int64_t>(d->large->shape.max_positions, d->large->kv_rows());
  for (const auto& [_, model] : d->models) {
    if (model->encoder == nullptr) continue;
    const int64_t length = source_length_of(*model, d->step_rows);
    d->source_length = d->source_length > 0 ? std::min(d->source_length, length) : length;
  }
  d->longest_piece =
      std::max(kLeastPiece, static_cast<int64_t>(d->large->tokenizer->longest_piece()));
  d->max_new_tokens = d->context_length - 1;
  if (limits.max_new_tokens > 0) {
    d->max_new_tokens = std::min<int64_t>(d->max_new_tokens, limits.max_new_tokens);
  }
  d->default_max_new_tokens = std::min<int64_t>(
      d->max_new_tokens, d->large->default_max_new_tokens.value_or(limits.default_max_new_tokens));
}

void set_vocabularies(Deployment* d) {
  d->early_vocabulary = draft_vocabulary_of(d->large->shape, *d->large->tokenizer);
  d->vocab_size = d->large->named_tokens();
  if (!d->small) return;
  d->draft_vocabulary = draft_vocabulary_of(d->small->shape, *d->small->tokenizer);
  d->small_vocab_size = d->small->named_tokens();
  if (!d->share_tokens) return;
  d->small_vocab_size = d->vocab_size = std::min(d->vocab_size, d->small_vocab_size);
}

void set_answer_formats(Deployment* d) {
  d->large_answers = answer_format_of(d->config, d->large->chat.get(), *d->large->tokenizer);
  if (!d->small) return;
  const bool own_template = d->small->chat && d->small->chat->present();
  const LoadedModel& chat = own_template ? *d->small : *d->large;
  d->small_answers = answer_format_of(d->config, chat.chat.get(), *d->small->tokenizer);
}

// Adapters belong to decoders: requests of an encoder or for embeddings take none.
absl::Status add_adapters(Metrics* metrics, Deployment* d) {
  const LoadedModel& large = *d->large;
  if (d->config.adapters.empty()) return absl::OkStatus();
  if (large.encoder != nullptr || large.shape.embeds_only) {
    return out_of_range(field_of(*d, "adapters"), d->config.adapters.size(),
                        absl::StrCat("none, as ", large.config.name,
                                     large.encoder ? " has an encoder" : " only embeds"));
  }
  for (const AdapterConfig& config : d->config.adapters) {
    if (config.id.index() >= large.shape.loras.size()) {
      return out_of_range(field_of(*d, "adapters"), quote_value(config.name),
                          absl::StrCat("the adapters that ", large.config.name,
                                       " has loaded: ", large.shape.loras.size()));
    }
    const LoraShape& shape = large.shape.loras[config.id.index()];
    const auto& known = large.config.loras;
    d->adapters->pin({.name = config.name,
                      .id = config.id,
                      .path = config.id.index() < known.size() ? known[config.id.index()].path : "",
                      .rank = shape.rank,
                      .bytes = shape.bytes,
                      .acceptance_stats = std::make_shared<AcceptanceStats>(),
                      .conditioned_stats = std::make_shared<AcceptanceStats>(),
                      .series = metrics->adapters.open(d->name, config.name)});
  }
  return annotate(d->adapters->check_limits(), field_of(*d, "adapters"));
}

ModelInDeployment describe(const std::string& role, const LoadedModel& model) {
  ModelInDeployment m;
  m.role = role;
  m.name = model.config.name;
  m.architecture = model.shape.architecture;
  m.device = model.config.device;
  for (size_t i = 1; i < model.config.shards.size(); ++i) {
    absl::StrAppend(&m.device, "+", model.config.shards[i].device);
  }
  m.dtype = model.shape.dtype;
  m.parameters = model.shape.parameters;
  m.weight_bytes = model.shape.weight_bytes;
  if (model.encoder) m.weight_bytes += model.encoder->shape.weight_bytes;
  m.layers = model.shape.layers;
  m.hidden_size = model.shape.hidden_size;
  m.batch_invariant = model.shape.batch_invariant;
  return m;
}

// With their roles, as DeploymentInfo lists them.
std::vector<std::pair<const char*, const LoadedModel*>> instances_of(const Deployment& d) {
  std::vector<std::pair<const char*, const LoadedModel*>> roles = {{"large", d.large}};
  if (d.small) roles.emplace_back("small", d.small);
  for (const auto& [_, model] : d.models) {
    if (model != d.large && model != d.small) roles.emplace_back("worker", model);
  }
  std::vector<std::pair<const char*, const LoadedModel*>> all;
  for (const auto& [role, first] : roles) {
    for (const LoadedModel* model : first->instances()) all.emplace_back(role, model);
  }
  return all;
}

absl::Status check_idle(const Deployment& d) {
  if (d.config.unload_after_idle_seconds <= 0) return absl::OkStatus();
  for (const auto& [name, model] : d.models) {
    if (model->config.shards.empty()) continue;
    return out_of_range(field_of(d, "unload_after_idle_seconds"),
                        d.config.unload_after_idle_seconds,
                        absl::StrCat("0, as model ", name, " has shards"));
  }
  return absl::OkStatus();
}

}  // namespace

const DeploymentConfig& config_of(const Deployment& deployment) { return deployment.config; }

// A conditioned small model follows the large one without adapters.
bool Deployment::answers_in_small_tokens(const GenerateRequest& request, bool adapted) const {
  if (request.method != kAuto) return answers_in_small_tokens(request.method);
  return !adapted && answers_in_small_tokens(methods.front().method) && !searches_beams(request) &&
         request.require_contract <= Contract::kLossy;
}

bool Deployment::can_run(const LoadedModel& model) const {
  return std::ranges::any_of(model.instances(),
                             [this](const LoadedModel* m) { return !lost || !lost(m->device); });
}

const MethodInfo* Deployment::offers(absl::string_view method) const {
  const auto it = std::ranges::find(methods, method, &MethodInfo::method);
  return it == methods.end() ? nullptr : &*it;
}

std::shared_ptr<AcceptanceStats> Deployment::acceptance_of(LoraId lora) const {
  const AdapterRef adapter = lora.valid() ? adapters->find(lora) : nullptr;
  return adapter ? adapter->acceptance_stats : acceptance_stats;
}

std::shared_ptr<AcceptanceStats> Deployment::conditioned_of(LoraId lora) const {
  const AdapterRef adapter = lora.valid() ? adapters->find(lora) : nullptr;
  return adapter ? adapter->conditioned_stats : conditioned_stats;
}

std::string Deployment::offered() const {
  return absl::StrJoin(methods, ", ",
                       [](std::string* out, const MethodInfo& info) { out->append(info.method); });
}

int64_t Deployment::unset_max_new_tokens(const GenerateRequest& request) const {
  const bool fill = request.stopping.fill_context && !large->default_max_new_tokens;
  return fill ? max_new_tokens : default_max_new_tokens;
}

DeploymentInfo Deployment::info() const {
  DeploymentInfo info;
  if (unloaded) {
    info = unloaded->info;
    for (size_t i = 0; i < info.models.size(); ++i) {
      info.models[i].device_lost = lost && lost(unloaded->devices[i]);
    }
    return info;
  }
  info.name = name;
  info.methods = methods;
  info.default_method = methods.front().method;
  for (const auto& [role, model] : instances_of(*this)) {
    info.models.push_back(describe(role, *model));
    info.models.back().device_lost = lost && lost(model->device);
  }
  info.adapters = adapters->infos();
  info.vocab_size = vocab_size;
  info.context_length = context_length;
  info.max_new_tokens = max_new_tokens;
  info.embedding_width = large->embedding.width(large->shape.hidden_size);
  info.has_chat_template = large->chat && large->chat->present();
  info.sampling = resolve_sampling({}, large->defaults);
  return info;
}

Deployment Deployment::without_models(HiddenStatesByModel hidden,
                                      const std::function<bool(const LoadedModel&)>& fixed) const {
  Deployment out = *this;
  out.unloaded = std::make_shared<UnloadedDeployment>();
  out.unloaded->info = info();
  out.unloaded->info.unloaded = true;
  for (const auto& [role, model] : instances_of(*this)) {
    out.unloaded->devices.push_back(model->device);
  }
  for (const auto& [model_name, model] : models) {
    out.unloaded->models.push_back(model->config);
    if (model->encoder != nullptr || !fixed(*model)) continue;
    int64_t& pages = out.unloaded->kv_pages[model_name] = model->pool.pages;
    for (const LoadedModel* replica : model->replicas) {
      pages = std::min(pages, replica->pool.pages);
    }
  }
  out.unloaded->hidden = std::move(hidden);
  out.large = out.small = nullptr;
  out.models.clear();
  out.compiled.clear();
  out.leases.clear();
  out.large_answers = out.small_answers = {};
  out.conditioning.reset();
  out.gone = std::make_shared<std::promise<void>>();
  return out;
}

absl::StatusOr<Deployment> make_deployment(const DeploymentConfig& config,
                                           const LimitsConfig& limits, const Models& models,
                                           Metrics* metrics) {
  Deployment d;
  d.name = config.name;
  d.config = config;
  d.adapters = std::make_shared<AdapterTable>(config.adapter_memory_bytes, config.max_adapters);
  d.large = d.models[config.large] = &models.at(config.large);
  const Declared declared = declared_methods(config);
  if (!config.small.empty()) {
    d.small = d.models[config.small] = &models.at(config.small);
    TANDEM_RETURN_IF_ERROR(check_embeds_only(d));
    TANDEM_RETURN_IF_ERROR(join_pair(declared, &d));
  }
  d.acceptance_stats = std::make_shared<AcceptanceStats>();
  d.conditioned_stats = std::make_shared<AcceptanceStats>();
  if (config.history_tokens > 0 && !d.large->shape.embeds_only) {
    d.history = std::make_shared<TextHistory>(config.history_tokens);
  }
  set_vocabularies(&d);
  set_answer_formats(&d);
  TANDEM_RETURN_IF_ERROR(add_models(models, declared, &d));
  TANDEM_RETURN_IF_ERROR(check_embeds_only(d));
  TANDEM_RETURN_IF_ERROR(check_idle(d));
  TANDEM_RETURN_IF_ERROR(check_methods(declared, d));
  TANDEM_RETURN_IF_ERROR(add_adapters(metrics, &d));
  d.notices = notices_of(d);
  set_lengths(limits, &d);
  compile_methods(declared, &d);
  if (d.conditioned_only() && !config.default_method.empty() && !d.offers(config.default_method)) {
    return out_of_range(
        field_of(d, "default_method"), config.default_method,
        absl::StrCat(d.offered(), ", as its models do not share tokens and architecture"));
  }
  for (const MethodInfo& m : d.methods) {
    d.series[m.method] = metrics->series.open(config.name, m.method);
  }
  return d;
}

absl::StatusOr<std::vector<Deployment>> make_deployments(const EngineConfig& config,
                                                         const Models& models, Metrics* metrics) {
  std::vector<Deployment> deployments;
  for (const DeploymentConfig& c : config.deployments) {
    TANDEM_ASSIGN_OR_RETURN(Deployment d, make_deployment(c, config.limits, models, metrics));
    deployments.push_back(std::move(d));
  }
  return deployments;
}

}  // namespace tandem
