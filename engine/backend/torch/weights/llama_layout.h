// Which tensors a checkpoint of the Llama family has.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/hf_config.h"

namespace tandem {

// "model.layers.3.self_attn.q_proj.weight" and the like; shapes are [out, in].
//   model.embed_tokens.weight                    [vocab, hidden]
//   model.layers.{i}.input_layernorm.weight      [hidden]
//   model.layers.{i}.self_attn.q_proj.weight     [heads * head_dim, hidden]      .bias if qkv_bias
//   model.layers.{i}.self_attn.{k,v}_proj.weight [kv_heads * head_dim, hidden]   .bias if qkv_bias
//   model.layers.{i}.self_attn.o_proj.weight     [hidden, heads * head_dim]      .bias if o_bias
//   model.layers.{i}.post_attention_layernorm.weight [hidden]
//   model.layers.{i}.mlp.{gate,up}_proj.weight   [intermediate, hidden]          .bias if mlp_bias
//   model.layers.{i}.mlp.down_proj.weight        [hidden, intermediate]          .bias if mlp_bias
//   model.norm.weight                            [hidden]
//   lm_head.weight                               [vocab, hidden]                 unless tied
std::vector<TensorSpec> llama_tensors(const HfConfig& config, bool tied);

struct LlamaLayout {
  bool tied = false;       // the head is model.embed_tokens.weight
  int64_t parameters = 0;  // elements of the tensors that the model uses; a tied head counts once
};

// Checks every name, shape and type, so that reading the tensors afterwards cannot fail. As in
// Transformers, a checkpoint whose config says tied but which holds a different lm_head.weight is
// not tied, and rotary inv_freq buffers of old files are ignored; any other unexpected tensor is an
// error, since a model without it would not be the one that was saved.
absl::StatusOr<LlamaLayout> check_llama_checkpoint(const HfConfig& config,
                                                   const Checkpoint& checkpoint);

}  // namespace tandem
