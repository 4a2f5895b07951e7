#include "server/draft_pairs.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

constexpr char kGguf[] = "-gguf";

// docs/reports/fidelity.md: default method `auto`, against autoregressive decoding.
constexpr DraftPair kPairs[] = {
    {"qwen2.5-coder-1.5b-instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct", 2.2,
     "164 HumanEval problems, greedy, 4-bit GGUF, draft model with mask tokens and --small-dtype "
     "q4_0, 2 cores of an AMD EPYC Zen 5, one request at a time; with many clients it can be "
     "slower"},
};

}  // namespace

const DraftPair* find_draft_pair(absl::string_view repository) {
  std::string name = absl::AsciiStrToLower(repository.substr(repository.find('/') + 1));
  name = std::string(absl::StripSuffix(name, kGguf));
  for (const DraftPair& pair : kPairs) {
    if (name == pair.large) return &pair;
  }
  return nullptr;
}

std::string draft_repository(const DraftPair& pair, absl::string_view large) {
  return absl::StrCat(pair.draft,
                      absl::EndsWith(absl::AsciiStrToLower(large), kGguf) ? "-GGUF" : "");
}

std::string expected_gain(const DraftPair& pair) {
  return absl::StrCat("measured ", pair.gain, " times as fast (", pair.conditions, ")");
}

std::string known_large_models() {
  std::string names;
  for (const DraftPair& pair : kPairs) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", pair.large);
  }
  return names;
}

}  // namespace tandem
