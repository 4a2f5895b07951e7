#include "engine/backend/torch/weights/lora_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/lora.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr size_t kMaxLoraConfigBytes = 1 << 20;
constexpr double kMaxAlpha = 1e6;
constexpr absl::string_view kPrefix = "base_model.model.";
constexpr absl::string_view kA = ".lora_A.weight";
constexpr absl::string_view kB = ".lora_B.weight";

// Fields that do not change what an adapter computes, or that are read below.
constexpr std::array kKnown{"alpha_pattern",
                            "auto_mapping",
                            "base_model_name_or_path",
                            "bias",
                            "corda_config",
                            "ensure_weight_tying",
                            "eva_config",
                            "exclude_modules",
                            "fan_in_fan_out",
                            "inference_mode",
                            "init_lora_weights",
                            "layers_pattern",
                            "layers_to_transform",
                            "loftq_config",
                            "lora_alpha",
                            "lora_dropout",
                            "megatron_core",
                            "peft_type",
                            "peft_version",
                            "qalora_group_size",
                            "r",
                            "rank_pattern",
                            "revision",
                            "runtime_config",
                            "target_modules",
                            "task_type",
                            "use_rslora"};

// Initializations that do not change the weights of the base model.
constexpr std::array kPlainStarts{"gaussian", "eva", "orthogonal"};

using Names = std::set<std::string, std::less<>>;

// By the end of a module's name, or by "^" and its whole name.
template <class T>
using ByModule = std::map<std::string, T, std::less<>>;

struct Config {
  int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;
  ByModule<int64_t> ranks;
  ByModule<double> alphas;
  std::optional<Names> targets;   // unset: they are not listed
  std::optional<Names> excluded;  // unset: they are not listed
  std::optional<std::set<int64_t>> layers;
};

bool is_empty(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

// Calls f(name) for a module's name and its ends that begin after a dot, until f returns true.
template <class F>
bool any_end(absl::string_view module, const F& f) {
  while (true) {
    if (f(module)) return true;
    const size_t dot = module.find('.');
    if (dot == absl::string_view::npos) return false;
    module.remove_prefix(dot + 1);
  }
}

bool matches(const Names& names, absl::string_view module) {
  return any_end(module, [&](absl::string_view end) { return names.contains(end); });
}

// A name from a pattern's key; none: it is a regular expression.
std::optional<std::string> plain_name(absl::string_view key) {
  std::string name;
  for (size_t i = 0; i < key.size(); ++i) {
    const bool escaped = key[i] == '\\' && i + 1 < key.size() && key[i + 1] == '.';
    if (escaped) ++i;
    const bool anchor = i == 0 && key[i] == '^';
    const bool letter = absl::ascii_isalnum(static_cast<unsigned char>(key[i])) || key[i] == '_' ||
                        key[i] == '.' || key[i] == '-';
    if (!letter && !anchor) return std::nullopt;
    name.push_back(key[i]);
  }
  if (name.empty()) return std::nullopt;
  return name;
}

// rank_pattern and alpha_pattern.
template <class T, class Read>
ByModule<T> read_pattern(JsonFields& fields, const std::string& path, const char* field,
                         const Read& read) {
  ByModule<T> all;
  const json* const object = fields.find(field);
  if (object == nullptr) return all;
  if (!object->is_object()) {
    fields.refuse(field, "an object of module names and numbers");
    return all;
  }
  JsonFields inner(*object, absl::StrCat(path, ": ", field, "."));
  for (const auto& [key, unused] : object->items()) {
    const std::optional<std::string> name = plain_name(key);
    if (!name) {
      fields.fail(out_of_range(absl::StrCat(path, ": ", field, ": key"), quote_value(key),
                               "names of modules or their ends, not regular expressions"));
      return all;
    }
    all[*name] = read(inner, key.c_str());
  }
  fields.fail(inner.status());
  return all;
}

// A list of names; none: null. A string is a regular expression, except "all-linear".
std::optional<Names> read_names(JsonFields& fields, const char* field) {
  const json* const value = fields.find(field);
  if (value == nullptr || value->is_string()) return std::nullopt;
  Names names;
  if (value->is_array()) {
    for (const json& name : *value) {
      if (!name.is_string()) break;
      names.insert(name.get<std::string>());
    }
  }
  const bool all_read = value->is_array() && std::ranges::all_of(*value, [](const json& name) {
                          return name.is_string();
                        });
  if (!all_read) fields.refuse(field, "a list of module names, a string, null");
  return names;
}

std::optional<std::set<int64_t>> read_layers(JsonFields& fields, const DecoderConfig& base) {
  const json* const value = fields.find("layers_to_transform");
  if (value == nullptr) return std::nullopt;
  const json list = value->is_array() ? *value : json::array({*value});
  std::set<int64_t> layers;
  for (const json& layer : list) {
    const bool fits =
        layer.is_number_integer() && layer.get<double>() >= 0 && layer.get<double>() < base.layers;
    if (!fits) {
      fields.refuse("layers_to_transform", absl::StrCat("layers from 0 to ", base.layers - 1));
      return std::nullopt;
    }
    layers.insert(layer.get<int64_t>());
  }
  if (layers.empty()) return std::nullopt;
  return layers;
}

// The layers' name in the file, without what is in front of it: "layers.", "h.".
std::string layers_name(const DecoderConfig& base) {
  absl::string_view name = base.names.layer;
  absl::ConsumePrefix(&name, base.names.prefix);
  absl::ConsumePrefix(&name, "model.");
  return std::string(name);
}

// layers_pattern may only say what holds anyway.
void check_layers_pattern(JsonFields& fields, const DecoderConfig& base) {
  const json* const value = fields.find("layers_pattern");
  if (value == nullptr || is_empty(*value)) return;
  const std::string own(absl::StripSuffix(layers_name(base), "."));
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& name : list) {
    if (name != own) return fields.refuse("layers_pattern", absl::StrCat("null, ", own));
  }
}

// Adapters that need more than the products of lora_A and lora_B.
void refuse_other_kinds(JsonFields& fields, const json& object) {
  if (fields.text("peft_type", std::nullopt) != "LORA") fields.refuse("peft_type", "\"LORA\"");
  if (fields.text("bias", "none") != "none") fields.refuse("bias", "\"none\"");
  if (const json* const start = fields.find("init_lora_weights");
      start != nullptr && !start->is_boolean() &&
      std::ranges::find(kPlainStarts, start->is_string() ? start->get<std::string>() : "") ==
          kPlainStarts.end()) {
    fields.refuse("init_lora_weights",
                  absl::StrCat("true, false, ", absl::StrJoin(kPlainStarts, ", "),
                               " (others change the base model; PEFT can convert the adapter when "
                               "it saves it)"));
  }
  for (const auto& [field, value] : object.items()) {
    if (is_empty(value) || std::ranges::find(kKnown, field) != kKnown.end()) continue;
    const char* const why =
        field == "use_dora"          ? "false (DoRA is not supported)"
        : field == "modules_to_save" ? "null (embeddings, the head and other whole modules cannot "
                                       "be replaced)"
        : field == "trainable_token_indices" ? "null (embeddings cannot be adapted)"
        : field == "lora_bias"               ? "false"
                                             : "null or false: it is not supported";
    fields.refuse(field.c_str(), why);
  }
}

absl::StatusOr<Config> read_config(const std::string& directory, const DecoderConfig& base) {
  const std::string path = absl::StrCat(directory, "/", kConfig);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxLoraConfigBytes));
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, path));
  JsonFields fields(object, absl::StrCat(path, ": "));
  refuse_other_kinds(fields, object);
  Config config;
  config.rank = fields.integer("r", 8, 1, kMaxLoraRank);
  config.alpha = fields.number("lora_alpha", 8, 0, kMaxAlpha);
  config.rslora = fields.boolean("use_rslora", false);
  config.ranks =
      read_pattern<int64_t>(fields, path, "rank_pattern", [](JsonFields& in, const char* key) {
        return in.integer(key, std::nullopt, 1, kMaxLoraRank);
      });
  config.alphas = read_pattern<double>(
      fields, path, "alpha_pattern",
      [](JsonFields& in, const char* key) { return in.number(key, std::nullopt, 0, kMaxAlpha); });
  config.targets = read_names(fields, "target_modules");
  if (fields.find("exclude_modules") == nullptr) {
    config.excluded = Names();
  } else {
    config.excluded = read_names(fields, "exclude_modules");
  }
  config.layers = read_layers(fields, base);
  check_layers_pattern(fields, base);
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config;
}

// The linear layers that can be adapted, by name.
struct Place {
  int layer = 0;
  LoraPart part = LoraPart::kQkv;
  size_t matrix = 0;
};
using Places = std::map<std::string, Place, std::less<>>;

// What Transformers has in front of the layers' name: it depends on the class of the base model.
std::vector<std::string> fronts(const DecoderConfig& base) {
  std::vector<std::string> all{"model.", ""};
  if (!base.names.prefix.empty()) all.push_back(base.names.prefix);
  return all;
}

Places places_of(const DecoderConfig& base, const std::string& front) {
  DecoderConfig named = base;
  named.names.layer = front + layers_name(base);
  Places places;
  for (int layer = 0; layer < base.layers; ++layer) {
    for (size_t part = 0; part < kLoraParts; ++part) {
      const LinearSpec spec = lora_spec(named, layer, static_cast<LoraPart>(part));
      for (size_t i = 0; i < spec.names.size(); ++i) {
        places[spec.names[i]] = {layer, static_cast<LoraPart>(part), i};
      }
    }
  }
  return places;
}

// Why a tensor's name is not that of an adapted linear layer.
absl::Status unknown_name(const std::string& where, const std::string& name,
                          const DecoderConfig& base, const Places& places) {
  const std::string field = absl::StrCat(where, ": tensor ", quote_value(name));
  if (absl::StrContains(name, "lora_magnitude_vector")) {
    return out_of_range(field, "DoRA", "LoRA without use_dora");
  }
  if (absl::StrContains(name, "lora_embedding_") || absl::StrContains(name, "embed") ||
      absl::StrContains(name, absl::StrCat(".", base.names.head, "."))) {
    return out_of_range(field, "an embedding or the head", "linear layers of decoder layers");
  }
  if (absl::EndsWith(name, ".bias"))
    return out_of_range(field, "a bias", "adapters without biases");
  const size_t at = name.find(absl::StrCat(".", layers_name(base)));
  if (at != std::string::npos) {
    const std::string rest = name.substr(at + 1 + layers_name(base).size());
    int64_t layer = 0;
    if (absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer) && layer >= base.layers) {
      return out_of_range(field, absl::StrCat("layer ", layer),
                          absl::StrCat("layers 0 to ", base.layers - 1, " of the base model"));
    }
  }
  std::set<std::string> ends;
  for (const auto& [module, place] : places) {
    if (place.layer == 0) ends.insert(module.substr(module.rfind('.') + 1));
  }
  return out_of_range(field, "not a linear layer of the base model",
                      absl::StrCat(kPrefix, "MODULE", kA, " and ", kB, ", where MODULE ends with ",
                                   absl::StrJoin(ends, ", ")));
}

// The value of the pattern's keys that match the module; none: no key does.
template <class T>
absl::StatusOr<std::optional<T>> value_of(const ByModule<T>& pattern, const std::string& path,
                                          absl::string_view module) {
  std::optional<T> value;
  bool differ = false;
  const auto take = [&](absl::string_view key) {
    const auto it = pattern.find(key);
    if (it == pattern.end()) return false;
    differ |= value.has_value() && *value != it->second;
    value = it->second;
    return false;
  };
  if (!pattern.empty()) {
    any_end(module, take);
    take(absl::StrCat("^", module));
  }
  if (!differ) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": several keys match module ", quote_value(std::string(module)),
                   " with different values; allowed: one value for a module"));
}

// Checks that the listed modules are those that have tensors.
absl::Status check_targets(const Config& config, const std::string& path, const Places& places,
                           const std::set<std::string, std::less<>>& adapted) {
  if (!config.targets) return absl::OkStatus();
  const auto is_listed = [&](absl::string_view module, const Place& place) {
    return matches(*config.targets, module) &&
           (!config.layers || config.layers->contains(place.layer));
  };
  for (const std::string& module : adapted) {
    if (is_listed(module, places.find(module)->second)) continue;
    return out_of_range(absl::StrCat(path, ": target_modules"),
                        absl::StrCat("without module ", quote_value(module)),
                        absl::StrCat("the modules that ", kWeights, " has tensors of"));
  }
  if (!config.excluded) return absl::OkStatus();
  for (const auto& [module, place] : places) {
    if (!is_listed(module, place) || adapted.contains(module)) continue;
    if (matches(*config.excluded, module)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": target_modules has module ", quote_value(module), ", but ", kWeights,
                     " has no tensors of it: missing ", kPrefix, module, kA));
  }
  return absl::OkStatus();
}

absl::Status no_weights(const std::string& directory, absl::Status missing) {
  struct stat info{};
  const std::string pickle = directory + "/adapter_model.bin";
  if (!absl::IsNotFound(missing) || ::stat(pickle.c_str(), &info) != 0) return missing;
  return absl::NotFoundError(absl::StrCat(
      missing.message(),
      " (adapter_model.bin is not read: it can run code; save the adapter as safetensors)"));
}

// Both tensors of a module have these shapes, rank x in and out x rank.
absl::Status check_shapes(const LoraModule& m, const LinearSpec& spec, const TensorSource& tensors,
                          const std::function<std::string(absl::string_view)>& field,
                          absl::string_view of_rank) {
  const auto check = [&](absl::string_view end, const std::vector<int64_t>& shape) {
    const std::string wrong = mismatch(*tensors.find(absl::StrCat(m.name, end)), shape);
    if (wrong.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field(end), ": ", wrong, " for rank ", m.rank, of_rank));
  };
  TANDEM_RETURN_IF_ERROR(check(kA, {m.rank, spec.in}));
  return check(kB, {spec.outs[m.matrix], m.rank});
}

absl::StatusOr<LoraFile> open_folder(const std::string& directory, const DecoderConfig& base,
                                     FileAccess access) {
  TANDEM_ASSIGN_OR_RETURN(const Config config, read_config(directory, base));
  absl::StatusOr<Checkpoint> opened = Checkpoint::open_file(directory, kWeights, access);
  if (!opened.ok()) return no_weights(directory, opened.status());
  LoraFile file;
  file.tensors = *std::move(opened);
  const std::string config_path = absl::StrCat(directory, "/", kConfig);
  const std::string& where = file.tensors.where();
  const std::vector<std::string> names = file.tensors.names();
  if (names.empty()) return out_of_range(absl::StrCat(where, ": tensors"), 0, "1 or more");

  // All modules have the front of the first.
  Places places;
  for (const std::string& front : fronts(base)) {
    places = places_of(base, front);
    absl::string_view first = names.front();
    const bool fits = absl::ConsumePrefix(&first, kPrefix) &&
                      (absl::ConsumeSuffix(&first, kA) || absl::ConsumeSuffix(&first, kB)) &&
                      places.contains(first);
    if (fits) break;
  }
  std::set<std::string, std::less<>> adapted;
  for (const std::string& name : names) {
    absl::string_view module = name;
    const bool prefixed = absl::ConsumePrefix(&module, kPrefix);
    const bool is_a = absl::ConsumeSuffix(&module, kA);
    const bool known = prefixed && (is_a || absl::ConsumeSuffix(&module, kB));
    const auto place = known ? places.find(module) : places.end();
    if (place == places.end()) return unknown_name(where, name, base, places);
    const std::string stem = absl::StrCat(kPrefix, module);
    const std::string other = absl::StrCat(stem, is_a ? kB : kA);
    if (file.tensors.find(other) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": tensor ", quote_value(other),
                                                     ": missing, but ", quote_value(name),
                                                     " is there"));
    }
    if (!is_a) continue;
    adapted.insert(std::string(module));
    TANDEM_ASSIGN_OR_RETURN(
        const std::optional<int64_t> own_rank,
        value_of(config.ranks, absl::StrCat(config_path, ": rank_pattern"), module));
    TANDEM_ASSIGN_OR_RETURN(
        const std::optional<double> own_alpha,
        value_of(config.alphas, absl::StrCat(config_path, ": alpha_pattern"), module));
    const int64_t rank = own_rank.value_or(config.rank);
    const auto of = static_cast<double>(rank);
    const LoraModule& m = file.modules.emplace_back(LoraModule{
        place->second.layer, place->second.part, place->second.matrix, stem, static_cast<int>(rank),
        own_alpha.value_or(config.alpha) / (config.rslora ? std::sqrt(of) : of)});
    const auto field = [&](absl::string_view end) {
      return absl::StrCat(where, ": tensor ", quote_value(absl::StrCat(stem, end)));
    };
    TANDEM_RETURN_IF_ERROR(check_shapes(m, lora_spec(base, m.layer, m.part), file.tensors, field,
                                        absl::StrCat(" of ", kConfig)));
  }
  TANDEM_RETURN_IF_ERROR(check_targets(config, config_path, places, adapted));
  return file;
}

absl::StatusOr<LoraFile> open_gguf(const std::string& path, const DecoderConfig& base,
                                   FileAccess access) {
  TANDEM_ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::open(path, access));
  TANDEM_ASSIGN_OR_RETURN(const GgufLora lora, gguf_lora(gguf.content, path, base));
  const Places places = places_of(base, "");
  LoraFile file;
  std::map<std::string, TensorView> tensors;
  for (const auto& [module, both] : lora.modules) {
    const std::string in_file = absl::StrCat(path, ": tensor ", quote_value(both.name + ".lora_a"));
    const auto place = places.find(module);
    if (place == places.end()) {
      return out_of_range(in_file, "not a linear layer of the base model",
                          absl::StrCat("linear layers of its ", base.layers, " layers"));
    }
    const int64_t rank = both.a.shape[0];
    if (rank > kMaxLoraRank) {
      return out_of_range(absl::StrCat(in_file, ": rank"), rank,
                          absl::StrCat("1 to ", kMaxLoraRank));
    }
    const std::string stem = absl::StrCat(kPrefix, module);
    for (const auto& [end, view, gguf_end] :
         {std::tuple(kA, &both.a, ".lora_a"), std::tuple(kB, &both.b, ".lora_b")}) {
      const std::string tensor = absl::StrCat(stem, end);
      tensors[tensor] = *view;
      file.names[tensor] = both.name + gguf_end;
    }
    // As in llama.cpp, an alpha of 0 stands for that of the rank.
    file.modules.push_back({place->second.layer, place->second.part, place->second.matrix, stem,
                            static_cast<int>(rank),
                            lora.alpha == 0 ? 1 : lora.alpha / static_cast<double>(rank), true});
  }
  TANDEM_ASSIGN_OR_RETURN(file.tensors,
                          Checkpoint::of_files(path, std::move(gguf.files), std::move(tensors)));
  for (const LoraModule& m : file.modules) {
    const auto field = [&](absl::string_view end) {
      return absl::StrCat(path, ": tensor ", quote_value(file.names.at(absl::StrCat(m.name, end))));
    };
    TANDEM_RETURN_IF_ERROR(
        check_shapes(m, lora_spec(base, m.layer, m.part), file.tensors, field, ""));
  }
  return file;
}

}  // namespace

LinearSpec lora_spec(const DecoderConfig& c, int layer, LoraPart part) {
  LayerSpec spec = layer_spec(c, layer);
  switch (part) {
    case LoraPart::kQkv:
      // Also where a GGUF file has Falcon's queries, keys and values in order.
      if (c.model_type == "falcon") {
        spec.qkv.groups = {c.kv_heads, c.heads / c.kv_heads, c.head_dim};
      }
      return std::move(spec.qkv);
    case LoraPart::kO:
      return std::move(spec.o);
    case LoraPart::kUp:
      return std::move(spec.up);
    case LoraPart::kDown:
      break;
  }
  return std::move(spec.down);
}

absl::StatusOr<LoraFile> LoraFile::open_header(const std::string& path, const DecoderConfig& base,
                                               FileAccess access) {
  if (base.encoder != nullptr || base.bidirectional) {
    return out_of_range(absl::StrCat(path, ": base model"), base.architecture,
                        "decoders: LoRA adapters of encoders are not supported");
  }
  TANDEM_ASSIGN_OR_RETURN(LoraFile file, is_gguf(path) ? open_gguf(path, base, access)
                                                       : open_folder(path, base, access));
  for (const LoraModule& m : file.modules) file.rank = std::max(file.rank, m.rank);
  std::ranges::sort(file.modules);
  return file;
}

namespace {

// The largest number of a 16-bit type; 0: `type` holds all of fp32.
float largest_of(DType type) {
  return type == DType::kFloat16 ? 65504.0f : type == DType::kBFloat16 ? 0x1.fep127f : 0.0f;
}

absl::Status check_largest(const TensorView& view, const std::string& field, DType type) {
  const float largest = largest_of(type);
  if (largest == 0) return absl::OkStatus();
  std::vector<float> numbers(4096);
  for (int64_t first = 0; first < view.elements();) {
    const int64_t n = std::min<int64_t>(view.elements() - first, 4096);
    const std::span<float> some(numbers.data(), static_cast<size_t>(n));
    TANDEM_RETURN_IF_ERROR(to_float(view, first, some));
    for (const float x : some) {
      if (std::abs(x) > largest) {
        return out_of_range(field, x,
                            absl::StrCat("-", largest, " to ", largest, " in ", dtype_name(type),
                                         " (adapter_dtype)"));
      }
    }
    first += n;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoraFile> LoraFile::open(const std::string& path, const DecoderConfig& base,
                                        FileAccess access, DType numbers) {
  TANDEM_ASSIGN_OR_RETURN(LoraFile file, open_header(path, base, access));
  for (const std::string& name : file.tensors.names()) {
    const TensorView& view = *file.tensors.find(name);
    const auto shown = file.names.find(name);
    const std::string field =
        absl::StrCat(file.tensors.where(), ": tensor ",
                     quote_value(shown == file.names.end() ? name : shown->second));
    absl::Status finite = check_finite(view, field);
    if (!finite.ok() && view.block != nullptr) finite = annotate(finite, field);
    TANDEM_RETURN_IF_ERROR(finite);
    TANDEM_RETURN_IF_ERROR(check_largest(view, field, numbers));
  }
  return file;
}

}  // namespace tandem
