// generation_config.json: what a model's authors sample with, for fields that a request leaves out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"

namespace tandem {

struct GenerationDefaults {
  // As the fields of Warp (engine/pass/pass.h): temperature 0 is greedy, and without do_sample it
  // is 0. With do_sample, fields that are left out have Transformers' values (1, 50, 1, 0, 1).
  float temperature = 0;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float typical_p = 1;
  // Processors, sampling or not.
  float repetition_penalty = 1;
  int64_t min_new_tokens = 0;
  std::vector<Token> bad_token_ids;  // bad_words_ids of one token; longer ones are not applied
  std::optional<int64_t> max_new_tokens;
  std::vector<Token> eos_token_ids;  // empty: the file names none; config.json's count then
  // "field: value" for what the file sets away from Transformers' default and this engine does not
  // apply from here, for the log.
  std::vector<std::string> not_applied;
};

// Reads `directory`/generation_config.json; without such a file, the defaults above. Of a GGUF file
// its metadata.
// INVALID_ARGUMENT for a broken file or a value out of range, naming the field.
absl::StatusOr<GenerationDefaults> load_generation_config(const std::string& directory);

absl::StatusOr<GenerationDefaults> parse_generation_config(const std::string& text,
                                                           absl::string_view name);

}  // namespace tandem
