#include "engine/host/deployment.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/host/methods.h"
#include "engine/host/methods/registry.h"
#include "engine/text/merge_order.h"

namespace tandem {
namespace {

// Ids that the output matrices of a pair may be apart: matrices are padded for speed, those of one
// family differently (Qwen 2: 151936 and 152064 rows for 151665 tokens).
constexpr int kMostPadding = 128;

// A token is taken to stand for so many bytes at least, whatever the vocabulary: normalizers
// shorten texts (blanks, full-width letters), and an unknown word may be one token.
constexpr int64_t kLeastPiece = 16;

// Ids that name a token. A matrix may have more rows.
int named_tokens(const LoadedModel& model) {
  Token end = model.tokenizer->vocab_size();
  for (const Token t : model.eos) end = std::max(end, t + 1);
  return std::min(end, model.shape.vocab_size);
}

// A small model drafts for a large one, so both must mean the same by every token id.
absl::Status same_vocabulary(const std::string& deployment, const LoadedModel& large,
                             const LoadedModel& small) {
  const auto differ = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("deployments[", deployment, "].small: \"", small.config.name,
                     "\" and large \"", large.config.name, "\" have different ", what,
                     "; allowed: one shared vocabulary, behind it at most ", kMostPadding,
                     " more ids of padding in one of them"));
  };
  const auto [fewer, more] = std::minmax(small.shape.vocab_size, large.shape.vocab_size);
  const std::string sizes =
      absl::StrCat("vocabulary sizes (", small.shape.vocab_size, ", ", large.shape.vocab_size, ")");
  if (more - fewer > kMostPadding) return differ(sizes);
  const Token tokens = std::max(large.tokenizer->vocab_size(), small.tokenizer->vocab_size());
  for (Token t = 0; t < tokens; ++t) {
    const std::string in_large = large.tokenizer->token_text(t);
    const std::string in_small = small.tokenizer->token_text(t);
    if (in_large != in_small) {
      return differ(absl::StrCat("tokens for id ", t, " (", quote_value(in_small), ", ",
                                 quote_value(in_large), ")"));
    }
    if (t >= fewer && t < more && !in_large.empty()) {
      return differ(
          absl::StrCat(sizes, ", and id ", t, " is no padding but ", quote_value(in_large)));
    }
  }
  return absl::OkStatus();
}

// The prompt is read by encoders or by decoders, by those of all models.
absl::Status same_reading(const std::string& deployment, const LoadedModel& large,
                          const LoadedModel& small) {
  if ((large.encoder == nullptr) == (small.encoder == nullptr)) {
    if (large.start_token == small.start_token) return absl::OkStatus();
    return out_of_range(
        absl::StrCat("deployments[", deployment, "].small: ", quote_value(small.config.name),
                     ": decoder_start_token_id"),
        small.start_token, absl::StrCat(large.start_token, ", that of ", large.config.name));
  }
  return out_of_range(
      absl::StrCat("deployments[", deployment, "].small"), quote_value(small.config.name),
      large.encoder == nullptr ? absl::StrCat("models without an encoder, as ", large.config.name)
                               : absl::StrCat("models with an encoder, as ", large.config.name));
}

absl::Status refused(const Deployment& d, const MethodEntry& method, const Refusal& why) {
  return out_of_range(absl::StrCat("deployments[", d.name, "].", method.path(why.field)), why.value,
                      why.allowed);
}

// Those that methods need beside the large and the small one.
absl::Status add_models(const std::map<std::string, LoadedModel>& models, Deployment* d) {
  for (const MethodEntry* method : all_methods()) {
    const MethodNeeds needs = method->with(d->config, {})->needs(d->config);
    for (const ModelInRole& role : needs.models) {
      if (needs.lacking || d->models.contains(role.model)) continue;
      const auto known = models.find(role.model);
      if (known == models.end()) {
        const auto name = [](std::string* out, const auto& m) { out->append(m.first); };
        return refused(*d, *method,
                       {role.field, quote_value(role.model),
                        absl::StrCat("names of models: ", absl::StrJoin(models, ", ", name))});
      }
      d->models[role.model] = &known->second;
    }
  }
  return absl::OkStatus();
}

// What the file says of a method, against the models as they are.
absl::Status check_methods(const Deployment& d) {
  for (const MethodEntry* method : all_methods()) {
    const MethodNeeds needs = method->with(d.config, {})->needs(d.config);
    for (const ModelInRole& role : needs.models) {
      if (needs.lacking || role.adapter.empty()) continue;
      const LoadedModel& model = *d.models.at(role.model);
      const ModelShape& shape = fed_shape(model, role);
      if (model.encoder != nullptr && !role.fed_by && role.masks == 0) {
        return refused(d, *method,
                       {"adapter", quote_value(role.adapter),
                        absl::StrCat("none: ", role.model, " has an encoder")});
      }
      if (find_adapter(shape, role.adapter).valid()) {
        const auto misfit = adapter_misfit(shape, role);
        if (misfit) return refused(d, *method, *misfit);
        continue;
      }
      const auto name = [](std::string* out, const AdapterShape& a) { out->append(a.name); };
      const std::string names = absl::StrJoin(shape.adapters, ", ", name);
      return refused(d, *method,
                     {"adapter", quote_value(role.adapter),
                      absl::StrCat(names.empty() ? "none" : names, ", the adapters among ",
                                   "the extras of model ", role.model)});
    }
    const auto misfit = method->misfit(d.config, models_of(d));
    if (misfit) return refused(d, *method, *misfit);
  }
  return absl::OkStatus();
}

std::vector<std::string> notes_of(const Deployment& d) {
  std::vector<std::string> all;
  for (const MethodEntry* method : all_methods()) {
    for (const std::string& note : method->notes(d.config, models_of(d))) {
      all.push_back(absl::StrCat("deployments[", d.name, "].", method->name, ": ", note));
    }
  }
  return all;
}

// The method in which one model writes what another has read; null: the file has none.
const MethodEntry* telling(const DeploymentConfig& config) {
  for (const MethodEntry* method : all_methods()) {
    const MethodNeeds needs = method->with(config, {})->needs(config);
    const bool tells = std::ranges::any_of(
        needs.models, [](const ModelInRole& role) { return role.fed_by.has_value(); });
    if (tells && !needs.lacking) return method;
  }
  return nullptr;
}

// Whether two models can be taken for each other, or else how one is told what the other reads.
absl::Status join(Deployment* d) {
  const absl::Status tokens = same_vocabulary(d->name, *d->large, *d->small);
  const absl::Status reading = same_reading(d->name, *d->large, *d->small);
  d->share_tokens = tokens.ok();
  if (tokens.ok() && reading.ok()) return absl::OkStatus();
  const MethodEntry* const method = telling(d->config);
  if (method == nullptr) return tokens.ok() ? reading : tokens;
  d->told_method = method->name;
  for (const ModelInRole& role : method->with(d->config, {})->needs(d->config).models) {
    if (role.role != Role::kLarge || role.prompt_only) continue;
    return refused(
        *d, *method,
        {"speculative", "true",
         absl::StrCat("false, as ", d->small->config.name, " and ", d->large->config.name,
                      tokens.ok() ? " read differently" : " have different tokens")});
  }
  return absl::OkStatus();
}

// Through which adapter a model is told, once its methods are checked.
void find_telling(Deployment* d) {
  if (!d->apart()) return;
  for (const ModelInRole& role : telling(d->config)->with(d->config, {})->needs(d->config).models) {
    if (!role.fed_by) continue;
    const ModelShape& shape = fed_shape(*d->models.at(role.model), role);
    d->told_by = &shape.adapters[find_adapter(shape, role.adapter).index()];
  }
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

}  // namespace

int draft_vocabulary_of(const ModelShape& model, const Tokenizer& tokenizer) {
  constexpr int kFrequent = 32768;
  constexpr double kShare = 0.125;  // of the parameters that a token needs
  const int64_t head = int64_t{model.vocab_size} * model.hidden_size;
  // Where the head has a matrix of its own, a token reads one row of the other.
  const bool worth = model.vocab_size >= 2 * kFrequent &&
                     static_cast<double>(head) >= kShare * static_cast<double>(model.parameters);
  return worth && merges_in_order(tokenizer) ? kFrequent : 0;
}

int64_t source_length_of(const LoadedModel& model, int64_t step_rows) {
  const LoadedModel& encoder = *model.encoder;
  return std::min<int64_t>(
      {encoder.shape.max_positions, encoder.kv_rows(), step_rows});  // it is never divided
}

bool Deployment::small_writes(const GenerateRequest& request) const {
  if (request.method != kAuto) return small_writes(request.method);
  return small_writes(methods.front().method) && !searches_beams(request) &&
         request.require_contract <= Contract::kLossy;
}

bool Deployment::can_run(const LoadedModel& model) const {
  return std::ranges::any_of(model.instances(),
                             [this](const LoadedModel* m) { return !lost || !lost(m->device); });
}

const MethodInfo* Deployment::offers(absl::string_view method) const {
  const auto it = std::find_if(methods.begin(), methods.end(),
                               [&](const MethodInfo& info) { return info.method == method; });
  return it == methods.end() ? nullptr : &*it;
}

std::string Deployment::offered() const {
  return absl::StrJoin(methods, ", ",
                       [](std::string* out, const MethodInfo& info) { out->append(info.method); });
}

DeploymentInfo Deployment::info() const {
  DeploymentInfo info;
  info.name = name;
  info.methods = methods;
  info.default_method = methods.front().method;
  std::vector<std::pair<const char*, const LoadedModel*>> roles = {{"large", large}};
  if (small) roles.emplace_back("small", small);
  for (const auto& [_, model] : models) {
    if (model != large && model != small) roles.emplace_back("worker", model);
  }
  for (const auto& [role, first] : roles) {
    for (const LoadedModel* model : first->instances()) {
      info.models.push_back(describe(role, *model));
      info.models.back().device_lost = lost && lost(model->device);
    }
  }
  info.vocab_size = vocab_size;
  info.context_length = context_length;
  info.max_new_tokens = max_new_tokens;
  info.has_chat_template = large->chat && large->chat->present();
  return info;
}

absl::StatusOr<std::vector<Deployment>> make_deployments(
    const EngineConfig& config, const std::map<std::string, LoadedModel>& models,
    Metrics* metrics) {
  std::vector<Deployment> deployments;
  for (const DeploymentConfig& c : config.deployments) {
    Deployment d;
    d.name = c.name;
    d.config = c;
    d.prefix_cache_per_client = c.prefix_cache_per_client;
    d.large = d.models[c.large] = &models.at(c.large);
    if (!c.small.empty()) {
      d.small = d.models[c.small] = &models.at(c.small);
      TANDEM_RETURN_IF_ERROR(join(&d));
    }
    d.acceptance_stats = std::make_shared<AcceptanceStats>();
    if (d.small) d.draft_vocabulary = draft_vocabulary_of(d.small->shape, *d.small->tokenizer);
    d.early_vocabulary = draft_vocabulary_of(d.large->shape, *d.large->tokenizer);
    d.vocab_size = named_tokens(*d.large);
    if (d.small) d.small_vocab_size = named_tokens(*d.small);
    if (d.small && d.share_tokens) {
      d.small_vocab_size = d.vocab_size = std::min(d.vocab_size, d.small_vocab_size);
    }
    TANDEM_RETURN_IF_ERROR(add_models(models, &d));
    TANDEM_RETURN_IF_ERROR(check_methods(d));
    d.notes = notes_of(d);
    find_telling(&d);
    d.methods = offered_methods(c, d.large->shape.batch_invariant, all_methods(), d.told_method);
    if (d.apart() && !c.default_method.empty() && !d.offers(c.default_method)) {
      return out_of_range(
          absl::StrCat("deployments[", c.name, "].default_method"), c.default_method,
          absl::StrCat(d.offered(), ", as its models cannot be taken for each other"));
    }
    d.step_rows = config.limits.step_rows;
    for (const MethodInfo& m : d.methods) {
      Series& series = metrics->series.emplace_back();
      series.model = c.name;
      series.method = m.method;
      d.series[m.method] = &series;
    }
    d.context_length = std::min<int64_t>(d.large->shape.max_positions, d.large->kv_rows());
    for (const auto& [_, model] : d.models) {
      if (model->encoder == nullptr) continue;
      const int64_t length = source_length_of(*model, d.step_rows);
      d.source_length = d.source_length > 0 ? std::min(d.source_length, length) : length;
    }
    d.longest_piece =
        std::max(kLeastPiece, static_cast<int64_t>(d.large->tokenizer->longest_piece()));
    d.max_new_tokens = d.context_length - 1;
    if (config.limits.max_new_tokens > 0) {
      d.max_new_tokens = std::min<int64_t>(d.max_new_tokens, config.limits.max_new_tokens);
    }
    d.default_max_new_tokens = std::min<int64_t>(
        d.max_new_tokens,
        d.large->default_max_new_tokens.value_or(config.limits.default_max_new_tokens));
    deployments.push_back(std::move(d));
  }
  return deployments;
}

}  // namespace tandem
