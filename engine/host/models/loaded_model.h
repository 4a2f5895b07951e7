// A model on a device, with the text files of its directory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/base/config.h"
#include "engine/base/embedding.h"
#include "engine/base/ids.h"
#include "engine/base/sampling_params.h"
#include "engine/pass/backend.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace tandem {

// Encoders and replicas are LoadedModels too. They have no tokenizer, template or defaults.
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
  EmbeddingSettings embedding;
  const LoadedModel* encoder = nullptr;  // runs the prompt; the decoder begins with start_token
  Token start_token = 0;
  // The same model on other devices, each with its own shape, pools and encoder. A request runs on
  // one instance (sched/placement.h).
  std::vector<const LoadedModel*> replicas;
  bool is_replica = false;

  // This model and its replicas.
  std::vector<const LoadedModel*> instances() const;
  // Rows of KV memory on the instance that has the fewest.
  int64_t kv_rows() const;
  // Ids that name a token: [0, named_tokens()). Output matrices may have more rows, as padding.
  int named_tokens() const;
};

// Tokens that the encoder of `model` runs in one pass, which is never split. REQUIRES: it has one.
int64_t source_length_of(const LoadedModel& model, int64_t step_rows);

// The default draft vocabulary of a model, or of an early layer of it: drafts are ids below this.
// 0 (all ids) unless the output matrix is a large part of the model and the tokenizer numbers its
// tokens by frequency.
int draft_vocabulary_of(const ModelShape& model, const Tokenizer& tokenizer);

}  // namespace tandem
