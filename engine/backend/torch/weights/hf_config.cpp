#include "engine/backend/torch/weights/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "engine/backend/torch/weights/json_fields.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = 4 << 20;
constexpr double kMaxFactor = 1e6;

// What differs between the families where config.json is silent: defaults of Transformers' classes.
struct Family {
  const char* model_type;
  const char* architecture;
  int64_t kv_heads;  // 0: as many as heads
  int64_t max_positions;
  int64_t window;  // 0: none
};
constexpr std::array<Family, 3> kFamilies{{{"llama", "LlamaForCausalLM", 0, 2048, 0},
                                           {"mistral", "MistralForCausalLM", 8, 131072, 4096},
                                           {"qwen2", "Qwen2ForCausalLM", 32, 32768, 4096}}};

// Fields that change a model's results in architectures close to these, and the one value (besides
// null) at which they change nothing.
struct Neutral {
  const char* field;
  double value;  // false counts as 0 and true as 1
};
constexpr std::array<Neutral, 21> kNeutral{{{"pretraining_tp", 1},
                                            {"partial_rotary_factor", 1},
                                            {"rotary_pct", 1},
                                            {"attn_logit_softcapping", 0},
                                            {"final_logit_softcapping", 0},
                                            {"logits_scaling", 1},
                                            {"logit_scale", 1},
                                            {"embedding_multiplier", 1},
                                            {"residual_multiplier", 1},
                                            {"attention_multiplier", 1},
                                            {"scale_emb", 1},
                                            {"scale_depth", 1},
                                            {"num_local_experts", 0},
                                            {"num_experts", 0},
                                            {"use_qk_norm", 0},
                                            {"qk_layernorm", 0},
                                            {"alibi", 0},
                                            {"is_causal", 1},
                                            {"is_encoder_decoder", 0},
                                            {"add_cross_attention", 0},
                                            {"use_bidirectional_attention", 0}}};

// As many as fit into an int, and more than any model has.
constexpr int64_t kMaxVocab = 1 << 24, kMaxWidth = 1 << 20, kMaxPositions = 1 << 26;

std::string families(const char* Family::* field) {
  std::string all;
  for (const Family& f : kFamilies) absl::StrAppend(&all, all.empty() ? "" : ", ", f.*field);
  return all;
}

const Family* find_family(JsonFields& fields) {
  const std::string type = fields.text("model_type", std::nullopt);
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&](const Family& f) { return type == f.model_type; });
  if (family == kFamilies.end()) {
    fields.refuse("model_type", families(&Family::model_type));
    return nullptr;
  }
  if (const json* names = fields.find("architectures");
      names != nullptr && *names != json::array({family->architecture})) {
    fields.refuse("architectures",
                  absl::StrCat("[\"", family->architecture, "\"] for model_type ", type));
  }
  return family;
}

void refuse_unsupported(JsonFields& fields) {
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("quantization_config", "none: weights in F64, F32, F16 or BF16");
  }
  for (const Neutral& neutral : kNeutral) {
    const json* value = fields.find(neutral.field);
    if (value == nullptr) continue;
    const bool same = value->is_boolean()  ? value->get<bool>() == (neutral.value != 0)
                      : value->is_number() ? value->get<double>() == neutral.value
                                           : false;
    if (same) continue;
    const char* const flag = neutral.value != 0 ? "true" : "false";
    fields.refuse(
        neutral.field,
        absl::StrCat(value->is_boolean() ? flag : absl::StrCat(neutral.value), " or null"));
  }
}

// Transformers 5 writes rope_parameters; 4 wrote rope_theta beside rope_scaling, which counts
// first.
RopeConfig read_rope(JsonFields& fields, const std::string& name, int64_t max_positions) {
  RopeConfig rope;
  rope.theta = fields.number("rope_theta", 10000.0, 1e-3, 1e15);
  const bool old = fields.find("rope_scaling") != nullptr;
  const char* const source = old ? "rope_scaling" : "rope_parameters";
  const json* object = fields.find(source);
  if (object == nullptr) return rope;
  if (!object->is_object()) {
    fields.refuse(source, "an object");
    return rope;
  }
  JsonFields inner(*object, absl::StrCat(name, ": ", source, "."));
  constexpr std::array kKnown{"rope_type",
                              "type",
                              "rope_theta",
                              "factor",
                              "low_freq_factor",
                              "high_freq_factor",
                              "original_max_position_embeddings",
                              "partial_rotary_factor"};
  for (const auto& [key, value] : object->items()) {
    if (!value.is_null() && std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      inner.refuse(key.c_str(), "nothing: the field is not supported");
    }
  }
  inner.number("partial_rotary_factor", 1.0, 1, 1);
  rope.theta = inner.number("rope_theta", rope.theta, 1e-3, 1e15);
  const char* const type_field = inner.present("rope_type") ? "rope_type" : "type";
  const std::string type = inner.text(type_field, "default");
  if (type == "linear") {
    rope.kind = RopeConfig::kLinear;
    rope.factor = inner.number("factor", std::nullopt, 1, kMaxFactor);
  } else if (type == "llama3") {
    rope.kind = RopeConfig::kLlama3;
    rope.factor = inner.number("factor", std::nullopt, 1, kMaxFactor);
    rope.low_freq_factor = inner.number("low_freq_factor", std::nullopt, 1e-6, kMaxFactor);
    rope.high_freq_factor = inner.number("high_freq_factor", std::nullopt, 1e-6, kMaxFactor);
    // A field of this name beside rope_scaling overrides the one in it, as in Transformers.
    const int64_t original =
        inner.integer("original_max_position_embeddings", max_positions, 1, kMaxPositions);
    rope.original_max_positions =
        fields.integer("original_max_position_embeddings", original, 1, kMaxPositions);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      inner.refuse("high_freq_factor",
                   absl::StrCat("more than low_freq_factor, which is ", rope.low_freq_factor));
    }
  } else if (type != "default") {
    inner.refuse(type_field, "default, linear, llama3");
  }
  fields.fail(inner.status());
  return rope;
}

// The sliding window of all layers; layers that differ are refused.
int read_window(JsonFields& fields, const Family& family, int layers) {
  const bool qwen = family.model_type == std::string("qwen2");
  const int64_t fallback = fields.present("sliding_window") ? 0 : family.window;
  int64_t window = fields.integer("sliding_window", fallback, 1, kMaxPositions);
  if (family.window == 0 && fields.find("sliding_window") != nullptr) {
    fields.refuse("sliding_window", absl::StrCat("null for model_type ", family.model_type));
  }
  if (qwen && !fields.boolean("use_sliding_window", false)) window = 0;

  const json* types = fields.find("layer_types");
  if (types == nullptr) {
    if (!qwen || window == 0) return static_cast<int>(window);
    // The first max_window_layers layers see everything, those above through the window.
    const int64_t full = fields.integer("max_window_layers", 28, 0, kMaxPositions);
    if (full >= layers) return 0;
    if (full > 0) {
      fields.refuse("max_window_layers", absl::StrCat("0, or at least num_hidden_layers (", layers,
                                                      "): all layers see the same window"));
    }
    return static_cast<int>(window);
  }
  const char* const allowed =
      window == 0 ? "\"full_attention\" for every layer, since there is no sliding window"
      : qwen      ? "\"full_attention\" for every layer, or \"sliding_attention\" for every layer"
                  : "\"sliding_attention\" for every layer, since there is a sliding window";
  const auto count = [&](const char* type) {
    return types->is_array() ? std::count(types->begin(), types->end(), json(type)) : 0;
  };
  const bool right_size = types->is_array() && types->size() == static_cast<size_t>(layers);
  const bool all_full = right_size && count("full_attention") == layers;
  const bool all_sliding = right_size && count("sliding_attention") == layers;
  if (all_full && (qwen || window == 0)) return 0;
  if (!all_sliding || window == 0) fields.refuse("layer_types", allowed);
  return static_cast<int>(window);
}

std::optional<SafeDType> read_dtype(JsonFields& fields) {
  const char* const field = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string name = fields.text(field, "");
  if (name == "float32") return SafeDType::kF32;
  if (name == "bfloat16") return SafeDType::kBF16;
  if (name == "float16") return SafeDType::kF16;
  if (name == "float64") return SafeDType::kF64;
  if (!name.empty()) fields.refuse(field, "float32, bfloat16, float16, float64");
  return std::nullopt;
}

}  // namespace

absl::StatusOr<HfConfig> parse_hf_config(const std::string& text, absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, name));
  JsonFields fields(object, absl::StrCat(name, ": "));
  const Family* const family = find_family(fields);
  if (family == nullptr) return fields.status();
  refuse_unsupported(fields);

  const auto integer = [&](const char* field, std::optional<int64_t> fallback, int64_t max) {
    return static_cast<int>(fields.integer(field, fallback, 1, max));
  };
  HfConfig config;
  config.model_type = family->model_type;
  config.architecture = family->architecture;
  config.vocab_size = integer("vocab_size", std::nullopt, kMaxVocab);
  config.hidden_size = integer("hidden_size", std::nullopt, kMaxWidth);
  config.intermediate_size = integer("intermediate_size", std::nullopt, kMaxWidth);
  config.layers = integer("num_hidden_layers", std::nullopt, 1000);
  config.heads = integer("num_attention_heads", std::nullopt, 1024);
  const bool kv_default = !fields.present("num_key_value_heads") && family->kv_heads > 0;
  config.kv_heads =
      integer("num_key_value_heads", kv_default ? family->kv_heads : config.heads, 1024);
  config.max_positions = integer("max_position_embeddings", family->max_positions, kMaxPositions);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6, 0, 1);
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu" && act != "swish") {
    fields.refuse("hidden_act", "silu");
  }
  TANDEM_RETURN_IF_ERROR(fields.status());

  if (config.heads % config.kv_heads != 0) {
    return out_of_range(absl::StrCat(name, ": num_key_value_heads"), config.kv_heads,
                        absl::StrCat("divisors of num_attention_heads, which is ", config.heads));
  }
  if (fields.find("head_dim") == nullptr && config.hidden_size % config.heads != 0) {
    return out_of_range(absl::StrCat(name, ": hidden_size"), config.hidden_size,
                        absl::StrCat("multiples of num_attention_heads, which is ", config.heads));
  }
  config.head_dim = integer("head_dim", config.hidden_size / config.heads, 1024);
  if (config.head_dim % 2 != 0) {
    return out_of_range(absl::StrCat(name, ": head_dim"), config.head_dim, "even numbers");
  }

  config.rope = read_rope(fields, std::string(name), config.max_positions);
  config.window = read_window(fields, *family, config.layers);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  // Mistral has no biases and Qwen 2 always has those three, whatever these fields say.
  if (config.model_type == "llama") {
    config.qkv_bias = config.o_bias = fields.boolean("attention_bias", false);
    config.mlp_bias = fields.boolean("mlp_bias", false);
  } else {
    config.qkv_bias = config.model_type == "qwen2";
  }
  config.dtype = read_dtype(fields);
  config.eos_token_ids = fields.token_ids("eos_token_id");
  const std::vector<Token> bos = fields.token_ids("bos_token_id");
  if (bos.size() > 1) fields.refuse("bos_token_id", "one token id");
  if (!bos.empty()) config.bos_token_id = bos[0];
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<HfConfig> load_hf_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxConfigBytes));
  return parse_hf_config(text, path);
}

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    float f = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    const auto factor = static_cast<float>(rope.factor);
    if (rope.kind == RopeConfig::kLinear) {
      f /= factor;
    } else if (rope.kind == RopeConfig::kLlama3) {
      // Waves much shorter than the original context stay, much longer ones are stretched, and
      // between the two the frequency goes smoothly from one to the other.
      const auto low = static_cast<float>(rope.low_freq_factor);
      const auto high = static_cast<float>(rope.high_freq_factor);
      const auto context = static_cast<float>(rope.original_max_positions);
      const float wave = 2 * std::numbers::pi_v<float> / f;
      if (wave > context / low) {
        f /= factor;
      } else if (wave >= context / high) {
        const float smooth = (context / wave - low) / (high - low);
        f = (1 - smooth) * f / factor + smooth * f;
      }
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

}  // namespace tandem
