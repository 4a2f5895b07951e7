// A deployment that is up: its models, text side and defaults, as requests are resolved against it.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/config.h"
#include "engine/base/sampling_params.h"
#include "engine/host/request.h"
#include "engine/pass/backend.h"
#include "engine/sched/metrics.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace tandem {

struct BitaLore;   // engine/decode/bita_budget.h
struct DraftLore;  // engine/decode/steering.h

// A loaded model, with what its directory says about text and generation. An encoder is one too,
// with nothing of these.
struct LoadedModel {
  ModelId id;
  DeviceId device;
  ModelConfig config;
  ModelShape shape;
  PoolSize pool;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat;
  SamplingParams defaults;  // generation_config.json or GGUF metadata
  int64_t default_min_new_tokens = 0;
  std::optional<int64_t> default_max_new_tokens;
  std::vector<Token> eos;
  const LoadedModel* encoder = nullptr;  // reads the prompt; this one begins with start_token
  Token start_token = 0;
  // The same model on further devices, with a shape, pools and an encoder of their own and nothing
  // of text. A request runs on one of them all (sched/placement.h).
  std::vector<const LoadedModel*> replicas;
  bool is_replica = false;  // among another's

  // Itself and its replicas.
  std::vector<const LoadedModel*> instances() const {
    std::vector<const LoadedModel*> all = {this};
    all.insert(all.end(), replicas.begin(), replicas.end());
    return all;
  }
  // Of its KV memory, on whichever device has the least.
  int64_t kv_rows() const {
    int64_t rows = pool.pages * pool.page_rows;
    for (const LoadedModel* r : replicas) rows = std::min(rows, r->pool.pages * r->pool.page_rows);
    return rows;
  }
};

// How many of a vocabulary's ids a model, or an early layer of it, drafts among where nobody says:
// all, unless much of what it reads for a draft would be its output matrix and the frequent tokens
// come first. 0: all
int draft_vocabulary_of(const ModelShape& model, const Tokenizer& tokenizer);

struct Deployment {
  std::string name;
  DeploymentConfig config;  // with what requests leave unset
  const LoadedModel* large = nullptr;
  const LoadedModel* small = nullptr;                // may be null
  std::map<std::string, const LoadedModel*> models;  // all of them, by name
  std::vector<MethodInfo> methods;                   // offered, the default first
  std::map<std::string, Series*> series;             // by method
  std::vector<std::string> notes;                    // for its operator, a line each
  std::function<bool(DeviceId)> lost;  // has it failed for good? From any thread; null: none has
  // Ids that may be fed and drawn: [0, vocab_size). Those that its models have beyond are padding.
  // Of models apart, the large one's.
  int vocab_size = 0;
  // Drafts of the small model are ids below this where nobody says otherwise; 0: all.
  int draft_vocabulary = 0;
  // Likewise what an early layer of the large model proposes.
  int early_vocabulary = 0;
  std::shared_ptr<DraftLore> draft_lore;
  std::shared_ptr<BitaLore> bita_lore;
  // The method in which the small model writes what the large one has read, where the two cannot be
  // taken for each other: they have different tokens, or one has an encoder. Then this and
  // autoregressive decoding are all that is offered. Empty: they can.
  std::string told_method;
  const AdapterShape* told_by = nullptr;  // then: through which the rows go
  bool share_tokens = true;               // of large and small: the same token behind each id
  int small_vocab_size = 0;               // then: vocab_size of the small model
  // Rows a sequence may have: the large model, and its KV memory. A small one may have fewer
  // (MethodPlan::context_length).
  int64_t context_length = 0;
  int64_t source_length = 0;  // of models with an encoder: tokens that it reads at most; else 0
  int64_t step_rows = 0;      // of a batch
  int64_t longest_piece = 0;  // bytes of text that one token may stand for
  // Of text that the context could hold.
  int64_t max_text_bytes() const { return context_length * longest_piece; }
  int64_t max_new_tokens = 0;
  int64_t default_max_new_tokens = 0;
  bool prefix_cache_per_client = false;

  std::string prefix_salt(const std::string& client) const {
    return prefix_cache_per_client ? "client " + client : "";
  }
  bool apart() const { return !told_method.empty(); }
  // Does the small model write, in tokens of its own?
  bool small_writes(absl::string_view method) const { return apart() && method == told_method; }
  bool small_writes(const GenerateRequest& request) const;
  // Is there a device with this model that is not lost?
  bool can_run(const LoadedModel& model) const;
  const MethodInfo* offers(absl::string_view method) const;
  std::string offered() const;  // "autoregressive, ngram"
  DeploymentInfo info() const;
};

// Tokens that the encoder of a model reads at once. REQUIRES: it has one.
int64_t source_length_of(const LoadedModel& model, int64_t step_rows);

// Every deployment of the configuration. INVALID_ARGUMENT when two models of one deployment do not
// fit together: the same token behind each id, and output matrices that differ by at most 128 rows
// of padding, which are never drawn. The error names the first token that differs. Also when one of
// two models has an encoder. Neither matters where the one is told what the other reads
// (llm_to_slm.adapter). Also when an early exit layer is none of the large model's. `metrics` gets
// the deployments' series.
absl::StatusOr<std::vector<Deployment>> make_deployments(
    const EngineConfig& config, const std::map<std::string, LoadedModel>& models, Metrics* metrics);

}  // namespace tandem
