// Draft models for known large models: only pairs that were measured. --small auto takes one, and
// the log names it when a large model is served without.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

struct DraftPair {
  const char* large;       // repository of safetensors without its organization, in lower case
  const char* draft;       // repository of safetensors
  double gain;             // times the speed of the large model alone, one request at a time
  const char* conditions;  // of the measurement
};

// By the repository "ORG/NAME" of a large model, in any case; "-GGUF" at its end does not matter,
// nor does the organization, as many publish conversions. Null: no measured pair.
const DraftPair* find_draft_pair(absl::string_view repository);

// The draft's repository in the format of the large one: GGUF if its name ends so.
std::string draft_repository(const DraftPair& pair, absl::string_view large);

// "measured 2.2 times as fast (conditions)"
std::string expected_gain(const DraftPair& pair);

// For messages.
std::string known_large_models();

}  // namespace tandem
