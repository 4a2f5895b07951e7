#include "engine/backend/torch/weights/hf/config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/strip.h"
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/model.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/backend/torch/weights/safetensors/packed_ints.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

// Fields that change results in related architectures, with the only value (besides null) that has
// no effect.
struct Neutral {
  const char* field;
  double value;  // false counts as 0, true as 1
};
constexpr absl::string_view kBidirectional = "use_bidirectional_attention";
constexpr std::array<Neutral, 20> kNeutral{{{"pretraining_tp", 1},
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
                                            {"add_cross_attention", 0},
                                            {kBidirectional.data(), 0}}};

std::string known(const char* Architecture::* field) {
  std::string all;
  for (const Architecture* a : architectures()) {
    absl::StrAppend(&all, all.empty() ? "" : ", ", a->*field);
  }
  return all;
}

// The class of the model without its output matrix; empty: not supported.
std::string base_name(const Architecture& architecture) {
  if (architecture.base_name != nullptr) return architecture.base_name;
  absl::string_view name = architecture.name;
  return absl::ConsumeSuffix(&name, "ForCausalLM") ? absl::StrCat(name, "Model") : "";
}

const Architecture* find_architecture(JsonFields& fields, bool* headless) {
  const std::string type = fields.text("model_type", std::nullopt);
  const auto all = architectures();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Architecture* a) { return type == a->model_type; });
  if (found == all.end()) {
    fields.refuse("model_type", known(&Architecture::model_type));
    return nullptr;
  }
  const json* const names = fields.find("architectures");
  const std::string base = base_name(**found);
  *headless = names != nullptr && !base.empty() && *names == json::array({base});
  if (names != nullptr && !*headless && *names != json::array({(*found)->name})) {
    fields.refuse("architectures",
                  absl::StrCat("[\"", (*found)->name, "\"] for model_type ", type));
  }
  return *found;
}

void refuse_unsupported(JsonFields& fields, const Architecture& architecture) {
  if (const bool both = architecture.encoder_decoder;
      fields.boolean("is_encoder_decoder", both) != both) {
    fields.refuse("is_encoder_decoder", both ? "true" : "false or null");
  }
  for (const Neutral& neutral : kNeutral) {
    const json* value = fields.find(neutral.field);
    if (value == nullptr) continue;
    const bool read = neutral.field == kBidirectional && architecture.reads_bidirectional;
    if (read) continue;
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

absl::StatusOr<DecoderConfig> parse_hf_config(const std::string& text, absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, name));
  JsonFields fields(object, absl::StrCat(name, ": "));
  bool headless = false;
  const Architecture* const architecture = find_architecture(fields, &headless);
  if (architecture == nullptr) return fields.status();
  refuse_unsupported(fields, *architecture);

  DecoderConfig config;
  config.model_type = architecture->model_type;
  config.architecture = architecture->name;
  TANDEM_RETURN_IF_ERROR(
      architecture->read({fields, std::string(name), config.model_type}, config));
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.headless = headless;
  if (headless) config.tie_word_embeddings = true;  // nothing is drawn
  config.dtype = read_dtype(fields);
  config.packed_ints = read_packed_ints(fields, name);
  config.eos_token_ids = fields.token_ids("eos_token_id");
  const std::vector<Token> bos = fields.token_ids("bos_token_id");
  if (bos.size() > 1) fields.refuse("bos_token_id", "one token id");
  if (!bos.empty()) config.bos_token_id = bos[0];
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<DecoderConfig> load_hf_config(const std::string& directory) {
  if (is_gguf(directory)) {
    TANDEM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::open(directory));
    TANDEM_ASSIGN_OR_RETURN(const std::string text, gguf_config_json(gguf.content, directory));
    TANDEM_ASSIGN_OR_RETURN(DecoderConfig config, parse_hf_config(text, directory));
    // ggml's converter transposes GPT-2's matrices and ungroups Falcon's queries, keys and values.
    config.names.transposed = config.names.grouped = false;
    return config;
  }
  const std::string path = directory + "/config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxConfigBytes));
  return parse_hf_config(text, path);
}

}  // namespace tandem
