#include "engine/host/deployment.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// A small model drafts for a large one, so both must mean the same by every token id.
absl::Status same_vocabulary(const std::string& deployment, const LoadedModel& large,
                             const LoadedModel& small) {
  const auto differ = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "deployments[", deployment, "].small: \"", small.config.name, "\" and large \"",
        large.config.name, "\" have different ", what, "; allowed: one shared vocabulary"));
  };
  if (large.shape.vocab_size != small.shape.vocab_size) {
    return differ(absl::StrCat("vocabulary sizes (", small.shape.vocab_size, ", ",
                               large.shape.vocab_size, ")"));
  }
  for (Token t = 0; t < large.tokenizer->vocab_size(); ++t) {
    if (large.tokenizer->token_text(t) != small.tokenizer->token_text(t)) {
      return differ(absl::StrCat("tokens for id ", t));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const MethodInfo* Deployment::offers(Method m) const {
  const auto it = std::find_if(methods.begin(), methods.end(),
                               [m](const MethodInfo& info) { return info.method == m; });
  return it == methods.end() ? nullptr : &*it;
}

std::string Deployment::offered() const {
  return absl::StrJoin(methods, ", ", [](std::string* out, const MethodInfo& info) {
    out->append(method_name(info.method));
  });
}

DeploymentInfo Deployment::info() const {
  DeploymentInfo info;
  info.name = name;
  info.methods = methods;
  info.default_method = methods.front().method;
  for (const auto& [role, model] : {std::pair{"large", large}, std::pair{"small", small}}) {
    if (!model) continue;
    ModelInDeployment m;
    m.role = role;
    m.name = model->config.name;
    m.architecture = model->shape.architecture;
    m.device = model->config.device;
    m.dtype = model->shape.dtype;
    m.parameters = model->shape.parameters;
    m.weight_bytes = model->shape.weight_bytes;
    m.layers = model->shape.layers;
    m.hidden_size = model->shape.hidden_size;
    info.models.push_back(std::move(m));
  }
  info.vocab_size = large->shape.vocab_size;
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
    d.prefix_cache_per_client = c.prefix_cache_per_client;
    d.large = &models.at(c.large);
    if (!c.small.empty()) {
      d.small = &models.at(c.small);
      TANDEM_RETURN_IF_ERROR(same_vocabulary(c.name, *d.large, *d.small));
    }
    // Sampled autoregressive decoding is exact in that a seed decides the tokens (METHODS).
    d.methods.push_back({Method::kAutoregressive, Contract::kExact, Contract::kExact});
    for (const MethodInfo& m : d.methods) {
      Series& series = metrics->series.emplace_back();
      series.model = c.name;
      series.method = method_name(m.method);
      d.series[m.method] = &series;
    }
    const PoolSize& pool = d.large->pool;
    d.context_length = std::min<int64_t>(d.large->shape.max_positions, pool.pages * pool.page_rows);
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
