#include "engine/backend/torch/weights/gguf/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/names.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/quote.h"
#include "engine/base/sampling_params.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr char kShortFactors[] = "rope_factors_short.weight";
constexpr char kLongFactors[] = "rope_factors_long.weight";
constexpr char kLabels[] = "cls.output.weight";
constexpr std::array<const char*, 2> kDense{"dense_2.weight", "dense_3.weight"};

const GgufArch* find_arch(GgufFields& fields) {
  const std::string name = fields.text("general.architecture", std::nullopt);
  const std::span<const GgufArch> all = gguf_archs();
  const auto it = std::ranges::find_if(all, [&](const GgufArch& a) { return name == a.gguf; });
  if (it != all.end()) return &*it;
  fields.refuse(
      "general.architecture", quote_value(name),
      absl::StrJoin(all, ", ", [](std::string* out, const GgufArch& a) { out->append(a.gguf); }));
  return nullptr;
}

const GgufTensor* find_tensor(const Gguf& gguf, std::string_view name) {
  const auto it = gguf.tensors.find(name);
  return it == gguf.tensors.end() ? nullptr : &it->second;
}

std::vector<float> floats(const GgufTensor& tensor) {
  std::vector<float> all;
  if (tensor.format->type != BlockType::kF32) return all;
  all.resize(tensor.data.size() / sizeof(float));
  std::memcpy(all.data(), tensor.data.data(), tensor.data.size());
  return all;
}

// Llama 3.1's frequencies are stored as divisors of the plain ones. All such models have the same
// three parameters, and the factor is the largest divisor. Other divisors are rejected.
json llama3_rope(GgufFields& fields, const std::vector<float>& divisors, double theta) {
  RopeConfig rope;
  rope.theta = theta;
  const int dim = 2 * static_cast<int>(divisors.size());
  const std::vector<float> plain = rope_inverse_frequencies(rope, dim);
  rope.kind = RopeConfig::kLlama3;
  rope.factor = divisors.empty() ? 1 : *std::max_element(divisors.begin(), divisors.end());
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_positions = 8192;
  const std::vector<float> scaled = rope_inverse_frequencies(rope, dim);
  for (size_t i = 0; i < divisors.size(); ++i) {
    const float wanted = plain[i] / divisors[i];
    if (std::abs(wanted - scaled[i]) <= 1e-5f * std::abs(scaled[i])) continue;
    fields.refuse(absl::StrCat("rope_freqs.weight[", i, "]"), absl::StrCat(divisors[i]),
                  absl::StrCat(plain[i] / scaled[i], ", as Llama 3.1's (factor ", rope.factor,
                               ", 1, 4, 8192)"));
    break;
  }
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

json read_rope(const Gguf& gguf, GgufFields& fields, const std::string& prefix, int64_t head_dim,
               double theta) {
  const std::string dimensions = prefix + "rope.dimension_count";
  if (const int64_t n = fields.integer(dimensions, head_dim, 1, kMaxWidth); n != head_dim) {
    fields.refuse(dimensions, absl::StrCat(n), absl::StrCat(head_dim, ", the size of a head"));
  }
  json rope = {{"rope_type", "default"}};
  const double old = fields.number(prefix + "rope.scale_linear", 1, 1, 1e6);
  const double factor = fields.number(prefix + "rope.scaling.factor", old, 1, 1e6);
  const std::string type = fields.text(prefix + "rope.scaling.type", "linear");
  if (type != "none" && type != "linear") {
    fields.refuse(prefix + "rope.scaling.type", quote_value(type), "none, linear");
  }
  if (type == "linear" && factor != 1) rope = {{"rope_type", "linear"}, {"factor", factor}};
  if (const GgufTensor* divisors = find_tensor(gguf, "rope_freqs.weight"); divisors != nullptr) {
    if (divisors->format->type != BlockType::kF32 ||
        divisors->shape != std::vector<int64_t>{head_dim / 2}) {
      fields.refuse("rope_freqs.weight", shape_text(divisors->shape),
                    absl::StrCat("F32 of shape [", head_dim / 2, "]"));
    } else if (fields.status().ok()) {
      rope = llama3_rope(fields, floats(*divisors), theta);
    }
  }
  return rope;
}

// Five local layers per global one, unless specified.
void read_gemma3(GgufFields& fields, const std::string& prefix, const json& head_dim,
                 json& config) {
  config["sliding_window"] =
      fields.integer(prefix + "attention.sliding_window", 1024, 1, kMaxPositions);
  config["sliding_window_pattern"] =
      fields.integer(prefix + "attention.sliding_window_pattern", 6, 1, 1000);
  const double local = fields.number(prefix + "rope.freq_base_swa", 10000.0, 1e-3, 1e15);
  config["rope_local_base_freq"] = local;
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["query_pre_attn_scalar"] = head_dim;
  const double cap = fields.number(prefix + "final_logit_softcapping", 0.0, 0, 1e6);
  if (cap != 0) config["final_logit_softcapping"] = cap;
  // The 27B model has another attention scale than 1 / sqrt(head_dim), which no key specifies.
  if (config["num_hidden_layers"] == 62) {
    config["query_pre_attn_scalar"] =
        config["hidden_size"].get<double>() / config["num_attention_heads"].get<double>();
  }
}

// Field names of GPT-2's config.json.
void read_gpt2(json& config) {
  config["n_embd"] = config["hidden_size"];
  config["n_layer"] = config["num_hidden_layers"];
  config["n_head"] = config["num_attention_heads"];
  config["n_positions"] = config["max_position_embeddings"];
  config["n_inner"] = config["intermediate_size"];
}

// All Falcon models use new_decoder_architecture here: the converter orders queries, keys and
// values consecutively, and models with one key head are a special case.
void read_falcon(const Gguf& gguf, json& config) {
  config["new_decoder_architecture"] = true;
  config["num_ln_in_parallel_attn"] =
      find_tensor(gguf, "blk.0.attn_norm_2.weight") != nullptr ? 2 : 1;
  config["num_kv_heads"] = config["num_key_value_heads"];
  config["ffn_hidden_size"] = config["intermediate_size"];
  config["bias"] = find_tensor(gguf, "blk.0.attn_qkv.bias") != nullptr;
}

// Field names of T5's config.json. Gated models use GELU, others ReLU, and max_distance is 128:
// ggml supports only these, and files do not specify them.
void read_t5(const Gguf& gguf, GgufFields& fields, const std::string& prefix, json& config) {
  config["d_model"] = config["hidden_size"];
  config["d_kv"] = config["head_dim"];
  config["d_ff"] = config["intermediate_size"];
  config["num_heads"] = config["num_attention_heads"];
  config["num_layers"] = config["num_hidden_layers"];
  config["num_decoder_layers"] = fields.integer(
      prefix + "decoder_block_count", config["num_hidden_layers"].get<int64_t>(), 1, 1000);
  config["layer_norm_epsilon"] = config["rms_norm_eps"];
  config["relative_attention_num_buckets"] =
      fields.integer(prefix + "attention.relative_buckets_count", std::nullopt, 4, 65536);
  config["decoder_start_token_id"] = fields.integer(prefix + "decoder_start_token_id", 0, 0,
                                                    config["vocab_size"].get<int64_t>() - 1);
  const bool gated = find_tensor(gguf, "dec.blk.0.ffn_gate.weight") != nullptr;
  config["feed_forward_proj"] = gated ? "gated-gelu" : "relu";
  if (const int64_t kv = config["num_key_value_heads"].get<int64_t>(); kv != config["num_heads"]) {
    fields.refuse(prefix + "attention.head_count_kv", absl::StrCat(kv),
                  absl::StrCat(config["num_heads"].get<int64_t>(), ", the number of heads"));
  }
}

// LongRoPE factors are stored as tensors.
void read_phi3(const Gguf& gguf, GgufFields& fields, const std::string& prefix, int64_t head_dim,
               json& config) {
  if (fields.present(prefix + "attention.sliding_window")) {
    config["sliding_window"] =
        fields.integer(prefix + "attention.sliding_window", std::nullopt, 1, kMaxPositions);
  }
  const GgufTensor* const shorter = find_tensor(gguf, kShortFactors);
  const GgufTensor* const longer = find_tensor(gguf, kLongFactors);
  if (shorter == nullptr && longer == nullptr) return;
  json scaling = {{"rope_type", "longrope"}};
  for (const auto& [name, tensor, field] : {std::tuple(kShortFactors, shorter, "short_factor"),
                                            std::tuple(kLongFactors, longer, "long_factor")}) {
    if (tensor == nullptr || tensor->format->type != BlockType::kF32 ||
        tensor->shape != std::vector<int64_t>{head_dim / 2}) {
      fields.refuse(name, tensor == nullptr ? "missing" : shape_text(tensor->shape),
                    absl::StrCat("F32 of shape [", head_dim / 2, "]"));
      return;
    }
    scaling[field] = floats(*tensor);
  }
  scaling["original_max_position_embeddings"] = fields.integer(
      prefix + "rope.scaling.original_context_length", std::nullopt, 1, kMaxPositions);
  if (fields.present(prefix + "rope.scaling.attn_factor")) {
    scaling["attention_factor"] =
        fields.number(prefix + "rope.scaling.attn_factor", std::nullopt, 1e-6, 1e6);
  }
  config["rope_scaling"] = scaling;
}

// Vocabulary size: rows of the embedding. It must equal the number of tokens and the key, if
// present.
int64_t read_vocabulary(const Gguf& gguf, GgufFields& fields, const std::string& prefix) {
  const GgufTensor* embedding = find_tensor(gguf, "token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    fields.refuse("token_embd.weight",
                  embedding == nullptr ? "missing" : shape_text(embedding->shape),
                  "a tensor of shape [vocabulary, hidden size]");
    return 1;
  }
  const int64_t rows = embedding->shape[0];
  const std::string same = absl::StrCat(rows, ", the rows of token_embd.weight");
  if (const int64_t n = fields.integer(prefix + "vocab_size", rows, 1, kMaxVocab); n != rows) {
    fields.refuse(prefix + "vocab_size", absl::StrCat(n), same);
  }
  const auto it = gguf.metadata.find("tokenizer.ggml.tokens");
  if (it != gguf.metadata.end() && it->second.count != static_cast<uint64_t>(rows)) {
    fields.refuse("number of tokenizer.ggml.tokens", absl::StrCat(it->second.count), same);
  }
  return rows;
}

// Spellings of control tokens that ggml treats as end of text if no key specifies it.
constexpr std::array<std::string_view, 8> kEndings{
    "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|eom_id|>",
    "<|end|>",    "<EOT>",      "<|endoftext|>", "<|end_of_text|>"};

std::vector<int64_t> ending_tokens(GgufFields& fields) {
  const std::vector<std::string_view> tokens = fields.texts("tokenizer.ggml.tokens");
  const std::vector<int64_t> types = fields.integers("tokenizer.ggml.token_type");
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  std::set<int64_t> ends;
  for (const char* name : {"eos", "eot", "eom"}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
    if (last >= 0 && fields.present(key)) ends.insert(fields.integer(key, std::nullopt, 0, last));
  }
  constexpr int64_t kControl = 3;
  for (size_t i = 0; i < std::min(tokens.size(), types.size()); ++i) {
    if (types[i] == kControl &&
        std::find(kEndings.begin(), kEndings.end(), tokens[i]) != kEndings.end()) {
      ends.insert(static_cast<int64_t>(i));
    }
  }
  return {ends.begin(), ends.end()};
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

// A file of Qwen3-Reranker has the rows "yes" and "no" of the output matrix, and never that matrix.
// It can be served if the rows are those of the embedding, up to the rounding of block types.
absl::Status check_labels(const Gguf& gguf, GgufFields& fields) {
  const GgufTensor* const labels = find_tensor(gguf, kLabels);
  const GgufTensor* const embedding = find_tensor(gguf, "token_embd.weight");
  if (labels == nullptr || embedding == nullptr || embedding->shape.size() != 2 ||
      find_tensor(gguf, "output.weight") != nullptr) {
    return absl::OkStatus();
  }
  const int64_t width = embedding->shape[1];
  const std::string key = absl::StrCat(fields.name(), ": ", kLabels);
  const std::vector<int64_t> shape = {2, width};
  if (labels->shape != shape) {
    return out_of_range(key, shape_text(labels->shape), shape_text(shape));
  }
  const std::vector<std::string_view> tokens = fields.texts("tokenizer.ggml.tokens");
  TANDEM_RETURN_IF_ERROR(fields.status());
  std::vector<float> label(static_cast<size_t>(width)), row(static_cast<size_t>(width));
  for (const auto& [at, word] : {std::pair(0, "yes"), std::pair(1, "no")}) {
    const auto token = std::find(tokens.begin(), tokens.end(), word) - tokens.begin();
    if (token >= std::min<int64_t>(embedding->shape[0], std::ssize(tokens))) {
      return out_of_range(absl::StrCat(key, ": token"), quote_value(word), "tokens of the file");
    }
    TANDEM_RETURN_IF_ERROR(to_float(view_of(*labels), at * width, label));
    TANDEM_RETURN_IF_ERROR(to_float(view_of(*embedding), token * width, row));
    if (const double same = cosine(label, row); same < 0.9) {
      return out_of_range(
          absl::StrCat(key, ": cosine similarity to the embedding of ", quote_value(word)), same,
          "0.9 to 1, as the file has no output matrix");
    }
  }
  return absl::OkStatus();
}

}  // namespace

TensorView view_of(const GgufTensor& tensor) {
  TensorView view;
  view.shape = tensor.shape;
  view.data = tensor.data.data();
  view.bytes = tensor.data.size();
  switch (tensor.format->type) {
    case BlockType::kF32:
      view.dtype = SafeDType::kF32;
      break;
    case BlockType::kF16:
      view.dtype = SafeDType::kF16;
      break;
    case BlockType::kBF16:
      view.dtype = SafeDType::kBF16;
      break;
    default:
      view.block = tensor.format;
  }
  return view;
}

absl::StatusOr<std::vector<DenseLayer>> gguf_dense(const Gguf& gguf, absl::string_view name) {
  std::vector<DenseLayer> layers;
  GgufFields fields(gguf, name);
  if (fields.text("general.architecture", "") != kEmbeddingGemma) return layers;
  for (const char* const part : kDense) {
    const GgufTensor* const tensor = find_tensor(gguf, part);
    if (tensor == nullptr) continue;
    const std::vector<int64_t>& shape = tensor->shape;
    if (shape.size() != 2 || std::max(shape[0], shape[1]) > kMaxDenseWidth) {
      return out_of_range(absl::StrCat(name, ": ", part), shape_text(shape),
                          absl::StrCat("a matrix of widths up to ", kMaxDenseWidth));
    }
    DenseLayer layer{.in = static_cast<int>(shape[1]), .out = static_cast<int>(shape[0])};
    if (!layers.empty() && layers.back().out != layer.in) {
      return out_of_range(absl::StrCat(name, ": ", part, ": inputs"), layer.in,
                          absl::StrCat(layers.back().out, ", the width before it"));
    }
    const TensorView view = view_of(*tensor);
    layer.weight.resize(static_cast<size_t>(view.elements()));
    TANDEM_RETURN_IF_ERROR(
        annotate(to_float(view, 0, layer.weight), absl::StrCat(name, ": ", part)));
    layers.push_back(std::move(layer));
  }
  return layers;
}

absl::StatusOr<std::string> gguf_config_json(const Gguf& gguf, absl::string_view name) {
  GgufFields fields(gguf, name);
  const GgufArch* arch = find_arch(fields);
  if (arch == nullptr) return fields.status();
  const std::string prefix = absl::StrCat(arch->gguf, ".");
  const auto size = [&](const char* key, std::optional<int64_t> fallback, int64_t max) {
    return fields.integer(prefix + key, fallback, 1, max);
  };
  json config = {{"model_type", arch->model_type},
                 {"architectures", json::array({arch->name})},
                 {"vocab_size", read_vocabulary(gguf, fields, prefix)}};
  const int64_t hidden = size("embedding_length", std::nullopt, kMaxWidth);
  const int64_t heads = size("attention.head_count", std::nullopt, 1024);
  const int64_t head_dim = size("attention.key_length", std::max<int64_t>(hidden / heads, 1), 1024);
  if (const int64_t v = size("attention.value_length", head_dim, 1024); v != head_dim) {
    fields.refuse(prefix + "attention.value_length", absl::StrCat(v),
                  absl::StrCat(head_dim, ", the length of keys"));
  }
  if (!fields.present(prefix + "attention.key_length") && hidden % heads != 0) {
    fields.refuse(prefix + "attention.head_count", absl::StrCat(heads),
                  absl::StrCat("divisors of embedding_length, which is ", hidden));
  }
  config["hidden_size"] = hidden;
  config["num_attention_heads"] = heads;
  config["head_dim"] = head_dim;
  config["num_key_value_heads"] = size("attention.head_count_kv", heads, 1024);
  config["intermediate_size"] = size("feed_forward_length", std::nullopt, kMaxWidth);
  config["num_hidden_layers"] = size("block_count", std::nullopt, 1000);
  config["max_position_embeddings"] = size("context_length", std::nullopt, kMaxPositions);
  const char* const epsilon =
      arch->rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  config[arch->rms ? "rms_norm_eps" : "layer_norm_epsilon"] =
      fields.number(prefix + epsilon, std::nullopt, 0, 1);
  const double theta = fields.number(prefix + "rope.freq_base", 10000.0, 1e-3, 1e15);
  config["rope_theta"] = theta;
  const json rope = read_rope(gguf, fields, prefix, head_dim, theta);
  if (rope["rope_type"] != "default") config["rope_scaling"] = rope;
  config["tie_word_embeddings"] = find_tensor(gguf, "output.weight") == nullptr;
  if (arch->permuted) {
    config["attention_bias"] = find_tensor(gguf, "blk.0.attn_q.bias") != nullptr;
  }
  const std::string_view name_of = arch->gguf;
  if (name_of == "gemma3" || name_of == kEmbeddingGemma) {
    read_gemma3(fields, prefix, head_dim, config);
    config["use_bidirectional_attention"] = name_of == kEmbeddingGemma;
  }
  if (name_of == "gpt2") read_gpt2(config);
  if (name_of == "falcon") read_falcon(gguf, config);
  if (name_of == "phi3") read_phi3(gguf, fields, prefix, head_dim, config);
  if (name_of == "t5") read_t5(gguf, fields, prefix, config);
  config["eos_token_id"] = ending_tokens(fields);
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config.dump();
}

absl::StatusOr<std::string> gguf_generation_json(const Gguf& gguf, absl::string_view name) {
  GgufFields fields(gguf, name);
  json config = {{"eos_token_id", ending_tokens(fields)}};
  for (const SamplingParameter& p : kSamplingParameters) {
    if (p.gguf == nullptr || !fields.present(p.gguf)) continue;
    if (p.integer) {  // some files write -1 for off
      config[p.name] = std::max<int64_t>(
          0, fields.integer(p.gguf, std::nullopt, -1, static_cast<int64_t>(p.max)));
    } else {
      config[p.name] = fields.number(p.gguf, std::nullopt, p.min, p.file_max);
    }
    if (p.warper) config["do_sample"] = true;
  }
  // If the file enables sampling, Transformers' default of top_k 50 does not apply.
  if (config.contains("do_sample") && !config.contains("top_k")) config["top_k"] = 0;
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config.dump();
}

absl::StatusOr<std::map<std::string, TensorView>> gguf_tensors(const Gguf& gguf,
                                                               absl::string_view name) {
  GgufFields fields(gguf, name);
  const GgufArch* arch = find_arch(fields);
  if (arch == nullptr) return fields.status();
  const std::string prefix = absl::StrCat(arch->gguf, ".attention.");
  const int64_t heads = fields.integer(prefix + "head_count", std::nullopt, 1, 1024);
  const int64_t kv_heads = fields.integer(prefix + "head_count_kv", heads, 1, 1024);
  TANDEM_RETURN_IF_ERROR(fields.status());
  const GgufVariant variant{.two_norms = find_tensor(gguf, "blk.0.attn_norm_2.weight") != nullptr,
                            .gated = find_tensor(gguf, "dec.blk.0.ffn_gate.weight") != nullptr};
  const bool reranker = std::string_view(arch->gguf) == "qwen3";
  if (reranker) TANDEM_RETURN_IF_ERROR(check_labels(gguf, fields));
  std::map<std::string, TensorView> views;
  for (const auto& [tensor_name, tensor] : gguf.tensors) {
    if (reranker && tensor_name == kLabels) continue;
    // Part of the configuration.
    if (tensor_name == "rope_freqs.weight") continue;
    if (std::string_view(arch->gguf) == "phi3" &&
        (tensor_name == kShortFactors || tensor_name == kLongFactors)) {
      continue;
    }
    if (std::string_view(arch->gguf) == kEmbeddingGemma &&
        std::find(kDense.begin(), kDense.end(), tensor_name) != kDense.end()) {
      continue;
    }
    const size_t dot = tensor_name.rfind('.');
    const std::string part = tensor_name.substr(0, dot);
    const std::string kind = dot == std::string::npos ? "" : tensor_name.substr(dot);
    const std::string hf =
        kind == ".weight" || kind == ".bias" ? gguf_hf_name(*arch, part, variant) : "";
    if (hf.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": tensor ", quote_value(tensor_name),
                                                     " ", shape_text(tensor.shape),
                                                     ": belongs to no part of ", arch->name));
    }
    TensorView view = view_of(tensor);
    const int64_t of = absl::EndsWith(part, ".attn_q")   ? heads
                       : absl::EndsWith(part, ".attn_k") ? kv_heads
                                                         : 0;
    if (arch->permuted && of > 0) {
      if (view.shape[0] % (2 * of) != 0) {
        return out_of_range(
            absl::StrCat(name, ": tensor ", quote_value(tensor_name), ": rows"), view.shape[0],
            absl::StrCat("multiples of ", 2 * of, ", for ", of, " heads of even size"));
      }
      view.head_rows = view.shape[0] / of;
    }
    if (arch->norms_plus_1 && absl::EndsWith(part, "_norm")) view.less = 1;
    views.emplace(hf + kind, std::move(view));
  }
  return views;
}

}  // namespace tandem
