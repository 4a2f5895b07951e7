// Sampling and stopping defaults of a model: its generation_config.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"
#include "engine/base/sampling_params.h"

namespace tandem {

struct GenerationDefaults {
  // Unset: the file does not set it. Warpers are set only with do_sample, then with Transformers'
  // values for absent fields. bad_token_ids: entries of bad_words_ids with one token.
  SamplingParams sampling;
  int64_t min_new_tokens = 0;
  std::optional<int64_t> max_new_tokens;
  std::vector<Token> eos_token_ids;  // empty: those of config.json apply
  // "field: value" per field that is set, differs from Transformers' default and has no effect
  // here.
  std::vector<std::string> not_applied;
};

// Reads `directory`/generation_config.json, or the metadata of a GGUF file. Without such a file,
// nothing is set. INVALID_ARGUMENT for a broken file or a value out of range, naming the field.
absl::StatusOr<GenerationDefaults> load_generation_config(const std::string& directory);

absl::StatusOr<GenerationDefaults> parse_generation_config(const std::string& text,
                                                           absl::string_view name);

}  // namespace tandem
