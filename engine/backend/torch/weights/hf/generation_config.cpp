#include "engine/backend/torch/weights/hf/generation_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/model.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// Read below, or without influence on the tokens. Sampling parameters are in kSamplingParameters.
constexpr std::array kKnown{
    "do_sample",           "min_new_tokens",       "bad_words_ids",
    "max_new_tokens",      "eos_token_id",         "bos_token_id",
    "pad_token_id",        "_from_model_config",   "transformers_version",
    "use_cache",           "output_attentions",    "output_hidden_states",
    "output_scores",       "output_logits",        "return_dict_in_generate",
    "return_legacy_cache", "cache_implementation", "cache_config",
    "low_memory",          "disable_compile",      "trust_remote_code",
    "chat_format"};

bool is_known(const std::string& field) {
  const SamplingParameter* const row = find_sampling_parameter(field);
  if (row != nullptr && row->in_generation_config) return true;
  return std::find(kKnown.begin(), kKnown.end(), field) != kKnown.end();
}

// Values without effect.
bool does_nothing(const std::string& field, const json& value) {
  if (value.is_null() || value == json(false) || value == json::array() ||
      value == json::object()) {
    return true;
  }
  if (field == "max_length") return value == json(20);  // Transformers' default
  constexpr std::array kOnes{
      "encoder_repetition_penalty", "length_penalty", "num_beams", "num_beam_groups",
      "num_return_sequences",       "top_h"};
  const bool one = std::find(kOnes.begin(), kOnes.end(), field) != kOnes.end();
  return value.is_number() && value.get<double>() == (one ? 1.0 : 0.0);
}

// bad_words_ids is a list of lists of token ids. Lists of one token ban it; longer lists have no
// effect here.
void read_bad_words(JsonFields& fields, GenerationDefaults& defaults) {
  const json* words = fields.find("bad_words_ids");
  if (words == nullptr) return;
  const auto is_id = [](const json& id) {
    return id.is_number_integer() && id >= 0 && id <= kMaxInt;
  };
  const auto is_word = [&](const json& word) {
    return word.is_array() && !word.empty() && std::all_of(word.begin(), word.end(), is_id);
  };
  if (!words->is_array() || !std::all_of(words->begin(), words->end(), is_word)) {
    return fields.refuse("bad_words_ids", "a list of lists of token ids");
  }
  json longer = json::array();
  for (const json& word : *words) {
    if (word.size() == 1) {
      defaults.sampling.bad_token_ids.push_back(word[0].get<Token>());
    } else {
      longer.push_back(word);
    }
  }
  if (!longer.empty()) {
    defaults.not_applied.push_back(
        absl::StrCat("bad_words_ids of several tokens: ", value_text(longer)));
  }
}

}  // namespace

absl::StatusOr<GenerationDefaults> parse_generation_config(const std::string& text,
                                                           absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, name));
  JsonFields fields(object, absl::StrCat(name, ": "));
  GenerationDefaults defaults;
  const bool sample = fields.boolean("do_sample", false);
  for (const SamplingParameter& p : kSamplingParameters) {
    if (!p.in_generation_config) continue;
    const double value = p.integer ? static_cast<double>(fields.integer(
                                         p.name, static_cast<int64_t>(p.file_default),
                                         static_cast<int64_t>(p.min), static_cast<int64_t>(p.max)))
                                   : fields.number(p.name, p.file_default, p.min, p.file_max);
    if (sample || !p.warper) defaults.sampling.*p.member = value;
  }
  defaults.min_new_tokens = fields.integer("min_new_tokens", 0, 0, kMaxInt);
  read_bad_words(fields, defaults);
  if (fields.find("max_new_tokens") != nullptr) {
    defaults.max_new_tokens = fields.integer("max_new_tokens", std::nullopt, 1, kMaxInt);
  }
  defaults.eos_token_ids = fields.token_ids("eos_token_id");
  TANDEM_RETURN_IF_ERROR(fields.status());

  for (const auto& [field, value] : object.items()) {
    if (!is_known(field) && !does_nothing(field, value)) {
      defaults.not_applied.push_back(absl::StrCat(field, ": ", value_text(value)));
    }
  }
  return defaults;
}

absl::StatusOr<GenerationDefaults> load_generation_config(const std::string& directory) {
  if (is_gguf(directory)) {
    TANDEM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::open(directory));
    TANDEM_ASSIGN_OR_RETURN(const std::string text, gguf_generation_json(gguf.content, directory));
    return parse_generation_config(text, directory);
  }
  const std::string path = directory + "/generation_config.json";
  const absl::StatusOr<std::string> text = read_small_file(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return GenerationDefaults{};
  TANDEM_RETURN_IF_ERROR(text.status());
  return parse_generation_config(*text, path);
}

}  // namespace tandem
