// A deployment with its models loaded and its methods compiled: requests are resolved against it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/config.h"
#include "engine/host/adapters.h"
#include "engine/host/methods/compile.h"
#include "engine/host/models/loaded_model.h"
#include "engine/host/models/pools.h"
#include "engine/host/requests/answer_format.h"
#include "engine/host/requests/open_requests.h"
#include "engine/host/requests/request.h"
#include "engine/sched/metrics.h"

namespace tandem {

class Grammars;          // engine/grammar/grammars.h
class TextHistory;       // engine/decode/text_history.h
struct AcceptanceStats;  // engine/decode/pacing/acceptance_stats.h

// How a small model that cannot draft for the large one uses it: the large model's hidden states of
// the prompt condition the small one, which answers in its own tokens (llm_to_slm).
struct ConditionedMethod {
  std::string method;
  const AdapterShape* adapter = nullptr;
};

// An idle deployment without its models, and all that loading them again needs. They get as many KV
// pages and the same hidden states as before, so that other deployments can be loaded again too.
struct UnloadedDeployment {
  DeploymentInfo info;
  std::vector<DeviceId> devices;  // by DeploymentInfo::models
  std::vector<ModelConfig> models;
  std::map<std::string, int64_t> kv_pages;  // by model; those that it does not name: as configured
  HiddenStatesByModel hidden;
  std::atomic<bool> loading{false};  // a load was asked for, and has not ended
};

// Of a name, since it was loaded first.
struct DeploymentCounts {
  Counter loads;
  Counter idle_unloads;
  Counter failed_loads;  // for waiting requests
};

// Immutable once requests can name it. Each request keeps its deployment until nothing of it is
// left.
struct Deployment {
  std::string name;
  DeploymentConfig config;
  const LoadedModel* large = nullptr;
  const LoadedModel* small = nullptr;                     // may be null
  std::map<std::string, const LoadedModel*> models;       // large, small and workers, by name
  std::vector<MethodInfo> methods;                        // offered, the default first
  std::map<std::string, CompiledMethod> compiled;         // those, and beam search, by name
  std::map<std::string, std::shared_ptr<Series>> series;  // by method
  // By name: a model is loaded while a lease of it exists. Without them, others keep the models.
  std::map<std::string, std::shared_ptr<const LoadedModel>> leases;
  std::shared_ptr<OpenRequests> open = std::make_shared<OpenRequests>();
  std::shared_ptr<DeploymentCounts> counts = std::make_shared<DeploymentCounts>();
  // Set: its models are not loaded. The pointers to them are null, and nothing is compiled. The
  // next request has them loaded, and goes to the deployment that then has the name.
  std::shared_ptr<UnloadedDeployment> unloaded;
  // Set when the deployment is gone, and models that only it had are freed.
  std::shared_ptr<std::promise<void>> gone = std::make_shared<std::promise<void>>();
  std::vector<std::string> notices;    // for the operator, a line each
  std::function<bool(DeviceId)> lost;  // has the device failed for good? Thread-safe; null: never
  // Token ids of inputs and outputs: [0, vocab_size). Ids above are padding. The vocabulary that a
  // pair shares, else the large model's.
  int vocab_size = 0;
  int small_vocab_size = 0;  // likewise of the small model
  int draft_vocabulary = 0;  // default for drafts of the small model (draft_vocabulary_of)
  int early_vocabulary = 0;  // for tokens that an early layer or masks of the large model propose
  std::shared_ptr<AcceptanceStats> acceptance_stats;   // shared by the deployment's requests
  std::shared_ptr<AcceptanceStats> conditioned_stats;  // the same, of a conditioned small model
  std::shared_ptr<TextHistory> history;                // of the large model's requests; null: none
  std::shared_ptr<AdapterTable> adapters = std::make_shared<AdapterTable>();
  AnswerFormat large_answers;    // of answers that the large model writes
  AnswerFormat small_answers;    // the small one
  Grammars* grammars = nullptr;  // of all deployments; null: no constraints
  bool share_tokens = true;      // large and small model mean the same token by each id
  // Set if large and small model have different tokens, or only one has an encoder. Then only this
  // method and autoregressive decoding are offered.
  std::optional<ConditionedMethod> conditioning;
  // Rows of a sequence: limited by the large model and its KV memory. The small model may allow
  // fewer (MethodPlan::context_length).
  int64_t context_length = 0;
  int64_t source_length = 0;  // most tokens that the encoders run; 0: no model has an encoder
  int64_t step_rows = 0;      // LimitsConfig::step_rows
  int64_t longest_piece = 0;  // most bytes of text that one token stands for
  int64_t max_new_tokens = 0;
  int64_t default_max_new_tokens = 0;

  // New tokens, at most, of a request that sets no max_new_tokens. The context may leave fewer.
  int64_t unset_max_new_tokens(const GenerateRequest& request) const;
  int64_t max_text_bytes() const { return context_length * longest_piece; }
  std::string prefix_salt(const std::string& client) const {
    return config.prefix_cache_per_client ? "client " + client : "";
  }
  bool conditioned_only() const { return conditioning.has_value(); }
  // Is the answer in tokens of the small model that are not the large one's?
  bool answers_in_small_tokens(absl::string_view method) const {
    return conditioned_only() && method == conditioning->method;
  }
  bool answers_in_small_tokens(const GenerateRequest& request) const {
    return answers_in_small_tokens(request, !request.adapter.empty());
  }
  // `adapted`: the request has an adapter, which it may name in its `model`.
  bool answers_in_small_tokens(const GenerateRequest& request, bool adapted) const;
  const AnswerFormat& answer_format(const LoadedModel& writer) const {
    return &writer == small ? small_answers : large_answers;
  }
  // Is there an instance of the model on a device that is not lost?
  bool can_run(const LoadedModel& model) const;
  const MethodInfo* offers(absl::string_view method) const;
  // The adapter that a request has, or names if it has none yet; null: none.
  template <class Request>
  AdapterRef adapter_of(const Request& request) const {
    return request.lease || request.adapter.empty() ? request.lease
                                                    : adapters->find(request.adapter);
  }
  // Statistics of requests with an adapter of the large model; invalid: without.
  std::shared_ptr<AcceptanceStats> acceptance_of(LoraId lora) const;
  std::shared_ptr<AcceptanceStats> conditioned_of(LoraId lora) const;
  std::string offered() const;  // "autoregressive, ngram"
  // Without its models. `hidden`: how they keep their hidden states. `fixed`: whether a model gets
  // its KV pages from a budget of fixed size. REQUIRES: it is loaded
  Deployment without_models(HiddenStatesByModel hidden,
                            const std::function<bool(const LoadedModel&)>& fixed) const;
  DeploymentInfo info() const;
};

using DeploymentRef = std::shared_ptr<const Deployment>;
using DeploymentTable = std::vector<DeploymentRef>;

// A deployment of loaded models. Errors and series as those of make_deployments(), which makes
// every deployment of the configuration. REQUIRES: `models` has config.large and config.small
absl::StatusOr<Deployment> make_deployment(const DeploymentConfig& config,
                                           const LimitsConfig& limits,
                                           const std::map<std::string, LoadedModel>& models,
                                           Metrics* metrics);

// Every deployment of the configuration. INVALID_ARGUMENT, with field, value and what is allowed,
// if its models or its methods' settings do not fit together. `metrics` gets a series for each
// method and each adapter of each deployment.
absl::StatusOr<std::vector<Deployment>> make_deployments(
    const EngineConfig& config, const std::map<std::string, LoadedModel>& models, Metrics* metrics);

}  // namespace tandem
