#include "engine/backend/torch/weights/hf/fields.h"

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

// Per layer, from layer_types: whether it has global attention.
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
    // The first max_window_layers layers have global attention, the others the window.
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
