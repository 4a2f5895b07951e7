#include "engine/backend/torch/weights/hf_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr double kMaxFactor = 1e6;

constexpr std::array<std::pair<const char*, Activation>, 7> kActivations{
    {{"silu", Activation::kSilu},
     {"swish", Activation::kSilu},
     {"gelu", Activation::kGelu},
     {"gelu_new", Activation::kGeluTanh},
     {"gelu_pytorch_tanh", Activation::kGeluTanh},
     {"gelu_fast", Activation::kGeluTanh},
     {"relu", Activation::kRelu}}};

const char* name_of(Activation activation) {
  return std::find_if(kActivations.begin(), kActivations.end(),
                      [&](const auto& a) { return a.second == activation; })
      ->first;
}

// The fields of one object of rotary parameters. max_positions: of the model.
RopeConfig read_rope_object(const HfFile& file, const json& object, const std::string& source,
                            double theta, int64_t max_positions) {
  RopeConfig rope;
  rope.theta = theta;
  if (!object.is_object()) {
    file.fields.fail(
        out_of_range(absl::StrCat(file.name, ": ", source), value_text(object), "an object"));
    return rope;
  }
  JsonFields inner(object, absl::StrCat(file.name, ": ", source, "."));
  constexpr std::array kKnown{"rope_type",
                              "type",
                              "rope_theta",
                              "factor",
                              "low_freq_factor",
                              "high_freq_factor",
                              "original_max_position_embeddings",
                              "partial_rotary_factor"};
  for (const auto& [key, value] : object.items()) {
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
        file.fields.integer("original_max_position_embeddings", original, 1, kMaxPositions);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      inner.refuse("high_freq_factor",
                   absl::StrCat("more than low_freq_factor, which is ", rope.low_freq_factor));
    }
  } else if (type != "default") {
    inner.refuse(type_field, "default, linear, llama3");
  }
  file.fields.fail(inner.status());
  return rope;
}

// By layer, whether it sees everything, from layer_types.
std::vector<bool> read_layer_types(const HfFile& file, const json& types, int layers,
                                   bool windowed) {
  std::vector<bool> full;
  bool good = types.is_array() && types.size() == static_cast<size_t>(layers);
  for (size_t i = 0; good && i < types.size(); ++i) {
    full.push_back(types[i] == "full_attention");
    good = full.back() || (windowed && types[i] == "sliding_attention");
  }
  if (good) return full;
  file.fields.refuse("layer_types", absl::StrCat(layers, " of \"full_attention\"",
                                                 windowed ? " and \"sliding_attention\""
                                                          : ", since there is no sliding window"));
  return {};
}

}  // namespace

int read_size(const HfFile& file, const char* field, std::optional<int64_t> fallback, int64_t max) {
  return static_cast<int>(file.fields.integer(field, fallback, 1, max));
}

absl::Status read_sizes(const HfFile& file, const SizeDefaults& defaults, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  c.vocab_size = read_size(file, "vocab_size", std::nullopt, kMaxVocab);
  c.hidden_size = read_size(file, "hidden_size", std::nullopt, kMaxWidth);
  c.intermediate_size = read_size(file, "intermediate_size", std::nullopt, kMaxWidth);
  c.layers = read_size(file, "num_hidden_layers", std::nullopt, kMaxLayers);
  c.heads = read_size(file, "num_attention_heads", std::nullopt, kMaxHeads);
  const bool kv_default = !fields.present("num_key_value_heads") && defaults.kv_heads > 0;
  c.kv_heads =
      read_size(file, "num_key_value_heads", kv_default ? defaults.kv_heads : c.heads, kMaxHeads);
  c.max_positions =
      read_size(file, "max_position_embeddings", defaults.max_positions, kMaxPositions);
  c.norm_eps = fields.number("rms_norm_eps", defaults.norm_eps, 0, 1);
  c.activation =
      read_activation(file, defaults.activation_field, defaults.activation, &defaults.activation);
  TANDEM_RETURN_IF_ERROR(fields.status());

  if (c.heads % c.kv_heads != 0) {
    return out_of_range(absl::StrCat(file.name, ": num_key_value_heads"), c.kv_heads,
                        absl::StrCat("divisors of num_attention_heads, which is ", c.heads));
  }
  const bool own_head_dim =
      fields.find("head_dim") != nullptr || (defaults.head_dim > 0 && !fields.present("head_dim"));
  if (!own_head_dim && c.hidden_size % c.heads != 0) {
    return out_of_range(absl::StrCat(file.name, ": hidden_size"), c.hidden_size,
                        absl::StrCat("multiples of num_attention_heads, which is ", c.heads));
  }
  c.head_dim = read_size(
      file, "head_dim",
      own_head_dim && defaults.head_dim > 0 ? defaults.head_dim : c.hidden_size / c.heads, 1024);
  if (c.head_dim % 2 != 0) {
    return out_of_range(absl::StrCat(file.name, ": head_dim"), c.head_dim, "even numbers");
  }
  return absl::OkStatus();
}

Activation read_activation(const HfFile& file, const char* field, Activation fallback,
                           const Activation* only) {
  const std::string name = file.fields.text(field, name_of(fallback));
  std::string allowed;
  for (const auto& [known, activation] : kActivations) {
    if (only != nullptr && activation != *only) continue;
    if (name == known) return activation;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", known);
  }
  file.fields.refuse(field, allowed);
  return fallback;
}

RopeConfig read_rope(const HfFile& file, int64_t max_positions) {
  const double theta = file.fields.number("rope_theta", 10000.0, 1e-3, 1e15);
  const bool old = file.fields.find("rope_scaling") != nullptr;
  const char* const source = old ? "rope_scaling" : "rope_parameters";
  const json* object = file.fields.find(source);
  if (object == nullptr) return {.theta = theta};
  return read_rope_object(file, *object, source, theta, max_positions);
}

void read_rope_by_layers(const HfFile& file, const RopeBases& defaults, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  c.rope.theta = fields.number("rope_theta", defaults.full, 1e-3, 1e15);
  RopeConfig local{.theta = fields.number("rope_local_base_freq", defaults.local, 1e-3, 1e15)};
  if (const json* all = fields.find("rope_parameters"); all != nullptr) {
    for (const auto& [key, value] : all->items()) {
      if (key != "full_attention" && key != "sliding_attention") {
        fields.refuse("rope_parameters", "an object of full_attention and sliding_attention");
        return;
      }
      if (value.is_null()) continue;
      RopeConfig& rope = key == "full_attention" ? c.rope : local;
      rope = read_rope_object(file, value, "rope_parameters." + key, rope.theta, c.max_positions);
    }
  }
  if (const json* scaling = fields.find("rope_scaling"); scaling != nullptr) {
    c.rope = read_rope_object(file, *scaling, "rope_scaling", c.rope.theta, c.max_positions);
  }
  c.local_rope = local;
}

void read_windows(const HfFile& file, const WindowDefaults& defaults, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  const int64_t fallback = fields.present("sliding_window") ? 0 : defaults.window;
  c.window = static_cast<int>(fields.integer("sliding_window", fallback, 1, kMaxPositions));
  if (defaults.window == 0 && !defaults.may && fields.find("sliding_window") != nullptr) {
    fields.refuse("sliding_window", absl::StrCat("null for model_type ", file.model_type));
  }
  if (defaults.asked_for && !fields.boolean("use_sliding_window", false)) c.window = 0;

  if (const json* types = fields.find("layer_types"); types != nullptr) {
    c.full_layers = read_layer_types(file, *types, c.layers, c.window > 0);
  } else if (c.window > 0 && defaults.asked_for) {
    // The first max_window_layers layers see everything, those above through the window.
    const int64_t full = fields.integer("max_window_layers", 28, 0, kMaxPositions);
    for (int i = 0; i < c.layers; ++i) c.full_layers.push_back(i < full);
  } else if (c.window > 0 && defaults.full_every > 0) {
    for (int i = 0; i < c.layers; ++i) c.full_layers.push_back((i + 1) % defaults.full_every == 0);
  }
  const auto full = std::count(c.full_layers.begin(), c.full_layers.end(), true);
  if (full == c.layers) c.window = 0;
  if (full == 0 || full == c.layers) c.full_layers.clear();
}

}  // namespace tandem
