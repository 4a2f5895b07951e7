// config.json of the Llama family: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM.
//
// Both spellings are read: Transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5
// (rope_parameters, dtype). What would change a result and is not implemented is refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/safetensors.h"
#include "engine/base/ids.h"

namespace tandem {

struct RopeConfig {
  enum Kind : uint8_t { kDefault, kLinear, kLlama3 };
  Kind kind = kDefault;
  double theta = 10000;
  double factor = 1;                   // kLinear, kLlama3
  double low_freq_factor = 1;          // kLlama3
  double high_freq_factor = 4;         // kLlama3
  int64_t original_max_positions = 0;  // kLlama3
};

struct HfConfig {
  std::string model_type;    // "llama", "mistral", "qwen2"
  std::string architecture;  // "LlamaForCausalLM", ...
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim = 0;  // even; heads * head_dim need not be hidden_size
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // biases of q_proj, k_proj, v_proj
  bool o_bias = false;    // of o_proj
  bool mlp_bias = false;  // of gate_proj, up_proj, down_proj
  int window = 0;         // sliding window of every layer in rows, the row itself included; 0: none
  int max_positions = 0;
  std::optional<SafeDType> dtype;    // kF32, kBF16, kF16 or kF64, if the file says
  std::vector<Token> eos_token_ids;  // may be empty
  std::optional<Token> bos_token_id;
};

// Reads `directory`/config.json. NOT_FOUND: no such file; INVALID_ARGUMENT: anything else, as
// "path: field: value; allowed: range".
absl::StatusOr<HfConfig> load_hf_config(const std::string& directory);

// The same for the text of a config.json; `name` stands for it in messages.
absl::StatusOr<HfConfig> parse_hf_config(const std::string& text, absl::string_view name);

// Inverse frequencies of the rotary embedding after scaling, in the float32 arithmetic of
// Transformers. [head_dim / 2]; element i rotates dimensions i and i + head_dim / 2 by
// position * f[i].
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim);

}  // namespace tandem
