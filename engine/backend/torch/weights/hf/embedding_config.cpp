#include "engine/backend/torch/weights/hf/embedding_config.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/model.h"
#include "engine/backend/torch/weights/gguf/names.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr const char* kModules = "modules.json";
constexpr const char* kPrompts = "config_sentence_transformers.json";
constexpr char kTanh[] = "torch.nn.modules.activation.Tanh";
constexpr char kIdentity[] = "torch.nn.modules.linear.Identity";

struct Mode {
  const char* field;  // of 1_Pooling/config.json
  std::optional<Pooling> pooling;
};
constexpr Mode kModes[] = {
    {"pooling_mode_lasttoken", Pooling::kLast},
    {"pooling_mode_mean_tokens", Pooling::kMean},
    {"pooling_mode_cls_token", Pooling::kFirst},
    {"pooling_mode_max_tokens", std::nullopt},
    {"pooling_mode_mean_sqrt_len_tokens", std::nullopt},
    {"pooling_mode_weightedmean_tokens", std::nullopt},
};

// nullopt: no such file.
absl::StatusOr<std::optional<std::string>> read_optional(const std::string& path) {
  absl::StatusOr<std::string> text = read_small_file(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  TANDEM_RETURN_IF_ERROR(text.status());
  return *std::move(text);
}

absl::Status read_pooling(const std::string& text, const std::string& path,
                          EmbeddingSettings* settings) {
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, path));
  JsonFields fields(object, absl::StrCat(path, ": "));
  int modes = 0;
  for (const Mode& mode : kModes) {
    if (!fields.boolean(mode.field, false)) continue;
    ++modes;
    if (mode.pooling.has_value()) {
      settings->pooling = *mode.pooling;
    } else {
      fields.refuse(mode.field, "false");
    }
  }
  if (!fields.boolean("include_prompt", true)) fields.refuse("include_prompt", "true");
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (modes == 1) return absl::OkStatus();
  return out_of_range(absl::StrCat(path, ": pooling modes that are true"), modes, "1");
}

// A Dense module: config.json and model.safetensors in `folder`.
absl::StatusOr<DenseLayer> load_dense(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxConfigBytes));
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, path));
  JsonFields fields(object, absl::StrCat(path, ": "));
  DenseLayer dense;
  dense.in = static_cast<int>(fields.integer("in_features", std::nullopt, 1, kMaxDenseWidth));
  dense.out = static_cast<int>(fields.integer("out_features", std::nullopt, 1, kMaxDenseWidth));
  const bool bias = fields.boolean("bias", true);
  const std::string activation = fields.text("activation_function", kTanh);
  dense.tanh = activation == kTanh;
  if (!dense.tanh && activation != kIdentity) {
    fields.refuse("activation_function", absl::StrCat(kTanh, ", ", kIdentity));
  }
  TANDEM_RETURN_IF_ERROR(fields.status());
  TANDEM_ASSIGN_OR_RETURN(const Checkpoint file,
                          Checkpoint::open_file(folder, "model.safetensors"));
  const auto read = [&](const char* name, const std::vector<int64_t>& shape,
                        std::vector<float>* out) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const TensorView* const tensor, file.require(name, shape));
    out->resize(static_cast<size_t>(tensor->elements()));
    return to_float(*tensor, 0, *out);
  };
  TANDEM_RETURN_IF_ERROR(read("linear.weight", {dense.out, dense.in}, &dense.weight));
  if (bias) TANDEM_RETURN_IF_ERROR(read("linear.bias", {dense.out}, &dense.bias));
  return dense;
}

absl::Status add_dense(const json& module, const std::string& directory, const std::string& path,
                       EmbeddingSettings* settings) {
  const json folder = module.value("path", json());
  const std::string name = folder.is_string() ? folder.get<std::string>() : "";
  if (name.empty() || name.front() == '/' || absl::StrContains(name, "..")) {
    return out_of_range(absl::StrCat(path, ": path"), value_text(folder), "a folder of the model");
  }
  if (settings->normalize) {
    return out_of_range(absl::StrCat(path, ": Dense"), "after Normalize", "before it");
  }
  TANDEM_ASSIGN_OR_RETURN(DenseLayer dense, load_dense(absl::StrCat(directory, "/", name)));
  if (!settings->dense.empty() && settings->dense.back().out != dense.in) {
    return out_of_range(absl::StrCat(directory, "/", name, "/config.json: in_features"), dense.in,
                        absl::StrCat(settings->dense.back().out, ", the width before it"));
  }
  settings->dense.push_back(std::move(dense));
  return absl::OkStatus();
}

absl::Status read_modules(const std::string& text, const std::string& path,
                          EmbeddingSettings* settings) {
  // The file is a list.
  TANDEM_ASSIGN_OR_RETURN(const json object,
                          parse_json_object(absl::StrCat("{\"modules\":", text, "}"), path));
  const json& modules = object["modules"];
  if (!modules.is_array()) return out_of_range(path, value_text(modules), "a list of modules");
  settings->normalize = false;
  for (const json& module : modules) {
    const json type = module.is_object() ? module.value("type", json()) : json();
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (absl::EndsWith(name, ".Normalize")) {
      settings->normalize = true;
    } else if (absl::EndsWith(name, ".Dense")) {
      const std::string directory = path.substr(0, path.rfind('/'));
      TANDEM_RETURN_IF_ERROR(add_dense(module, directory, path, settings));
    } else if (!absl::EndsWith(name, ".Transformer") && !absl::EndsWith(name, ".Pooling")) {
      return out_of_range(absl::StrCat(path, ": type"), value_text(type),
                          "Transformer, Pooling, Dense, Normalize");
    }
  }
  return absl::OkStatus();
}

absl::Status read_prompts(const std::string& text, const std::string& path,
                          EmbeddingSettings* settings) {
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, path));
  JsonFields fields(object, absl::StrCat(path, ": "));
  if (const json* prompts = fields.find("prompts"); prompts != nullptr) {
    if (!prompts->is_object()) fields.refuse("prompts", "an object of names and texts");
    for (const auto& [name, prompt] : prompts->items()) {
      if (!prompt.is_string()) {
        fields.refuse("prompts", "an object of names and texts");
        break;
      }
      settings->prompts[name] = prompt.get<std::string>();
    }
  }
  settings->default_prompt = fields.text("default_prompt_name", "");
  if (!settings->default_prompt.empty() && !settings->prompts.contains(settings->default_prompt)) {
    fields.refuse("default_prompt_name", "a name in prompts");
  }
  return fields.status();
}

using Reader = absl::Status (*)(const std::string&, const std::string&, EmbeddingSettings*);

// Reads `file` of `directory`, if it exists. Returns whether it does.
absl::StatusOr<bool> read_beside(const std::string& directory, const char* file, Reader read,
                                 EmbeddingSettings* settings) {
  const std::string path = absl::StrCat(directory, "/", file);
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> text, read_optional(path));
  if (text.has_value()) TANDEM_RETURN_IF_ERROR(read(*text, path, settings));
  return text.has_value();
}

// GGUF has no key for prompts. These are those of the original models.
std::map<std::string, std::string> known_prompts(const std::string& architecture, bool pools_last) {
  if (architecture == kEmbeddingGemma) {
    return {{"query", "task: search result | query: "},
            {"document", "title: none | text: "},
            {"Classification", "task: classification | query: "},
            {"Clustering", "task: clustering | query: "},
            {"InstructionRetrieval", "task: code retrieval | query: "},
            {"STS", "task: sentence similarity | query: "},
            {"Summarization", "task: summarization | query: "}};
  }
  if (architecture == "qwen3" && pools_last) {  // Qwen3-Embedding
    return {{"query",
             "Instruct: Given a web search query, retrieve relevant passages that answer the "
             "query\nQuery:"},
            {"document", ""}};
  }
  return {};
}

absl::StatusOr<EmbeddingSettings> gguf_embedding(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::open(path));
  GgufFields fields(gguf.content, path);
  // 0: none, 1: mean, 2: the first token, 3: the last, 4: a reranker's.
  const std::string architecture = fields.text("general.architecture", std::nullopt);
  const std::string key = absl::StrCat(architecture, ".pooling_type");
  const bool has_type = fields.present(key);
  const int64_t type = fields.integer(key, architecture == kEmbeddingGemma ? 1 : 3, 0, 4);
  TANDEM_RETURN_IF_ERROR(fields.status());
  EmbeddingSettings settings;
  // The converter drops the files of Sentence Transformers. They may lie beside the GGUF file.
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash);
  TANDEM_RETURN_IF_ERROR(read_beside(directory, kModules, read_modules, &settings).status());
  TANDEM_ASSIGN_OR_RETURN(const bool has_prompts,
                          read_beside(directory, kPrompts, read_prompts, &settings));
  if (!has_prompts) settings.prompts = known_prompts(architecture, has_type && type == 3);
  if (type == 1) settings.pooling = Pooling::kMean;
  if (type == 2) settings.pooling = Pooling::kFirst;
  TANDEM_ASSIGN_OR_RETURN(std::vector<DenseLayer> dense, gguf_dense(gguf.content, path));
  if (!dense.empty()) settings.dense = std::move(dense);
  return settings;
}

}  // namespace

absl::StatusOr<EmbeddingSettings> load_embedding_config(const std::string& directory) {
  if (is_gguf(directory)) return gguf_embedding(directory);
  EmbeddingSettings settings;
  const std::pair<const char*, Reader> files[] = {
      {"1_Pooling/config.json", read_pooling}, {kModules, read_modules}, {kPrompts, read_prompts}};
  for (const auto& [file, read] : files) {
    TANDEM_RETURN_IF_ERROR(read_beside(directory, file, read, &settings).status());
  }
  return settings;
}

}  // namespace tandem
