// The numeric sampling parameters, one table row each.
//
// A row states name, range, default and help of a parameter, and its keys in a model's files. Range
// checks, defaults, the gRPC and JSON fields, the command line's help, generation_config.json and
// GGUF metadata all follow from it. To add a parameter, add
//   1. a field of v1.GenerateRequest of the same name (proto/tandem/v1/generation.proto),
//   2. a member of SamplingParams and a row of kSamplingParameters (here),
//   3. a member of Warp or Processors (engine/pass/pass.h), its conversion and its effect
//      (engine/sampling/warp or engine/sampling/processors); a warper that cuts tokens also in
//      Warp::truncates(),
//   4. the Python client's type hint (client/python/tandem_client/request.py).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

// Values of a client or a model; unset: not given. Doubles, so that checks see the value as sent.
struct SamplingParams {
  std::optional<double> temperature;
  std::optional<double> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> typical_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  // Not in the table:
  std::vector<std::pair<int64_t, double>> logit_bias;  // token, added to its logit
  std::vector<int64_t> bad_token_ids;                  // never drawn
};

struct SamplingParameter {
  const char* name;  // in the protos, in JSON and in generation_config.json
  std::optional<double> SamplingParams::* member;
  // Requests: [min, max], or (min, max] when `min_excluded`. Files: [min, file_max].
  double min, max;
  bool min_excluded = false;
  bool integer = false;
  double off;  // the default, and the value without effect
  // Warpers shape draws only. Model files set them only together with do_sample.
  bool warper = false;
  bool in_generation_config = true;
  double file_max = max;
  double file_default = off;   // of a generation_config.json with do_sample, as in Transformers
  const char* gguf = nullptr;  // metadata key; null: none
  const char* help = "";       // for the command line, before range and default
  const char* off_means = "off";

  std::string allowed() const;  // "[0, 100]", "(0, 1]"
  // INVALID_ARGUMENT "name: value; allowed: range". NaN is out of range.
  absl::Status check(double value) const;
};

inline constexpr auto kSamplingParameters = std::to_array<SamplingParameter>({
    {.name = "temperature",
     .member = &SamplingParams::temperature,
     .min = 0,
     .max = 100,
     .off = 0,
     .warper = true,
     .file_max = 1e4,
     .file_default = 1,
     .gguf = "general.sampling.temp",
     .off_means = "greedy, the default unless the model sets another"},
    {.name = "top_k",
     .member = &SamplingParams::top_k,
     .min = 0,
     .max = std::numeric_limits<int32_t>::max(),
     .integer = true,
     .off = 0,
     .warper = true,
     .file_default = 50,
     .gguf = "general.sampling.top_k",
     .help = "draw from the K most probable tokens"},
    {.name = "top_p",
     .member = &SamplingParams::top_p,
     .min = 0,
     .max = 1,
     .min_excluded = true,
     .off = 1,
     .warper = true,
     .gguf = "general.sampling.top_p",
     .help = "draw from the most probable tokens of this total"},
    {.name = "min_p",
     .member = &SamplingParams::min_p,
     .min = 0,
     .max = 1,
     .off = 0,
     .warper = true,
     .gguf = "general.sampling.min_p",
     .help = "least probability, relative to the largest"},
    {.name = "typical_p",
     .member = &SamplingParams::typical_p,
     .min = 0,
     .max = 1,
     .min_excluded = true,
     .off = 1,
     .warper = true,
     .help = "draw from the most typical tokens of this total"},
    // Transformers allows any value above 0. Below 0.01, divided logits leave fp32's range.
    {.name = "repetition_penalty",
     .member = &SamplingParams::repetition_penalty,
     .min = 0.01,
     .max = 100,
     .off = 1,
     .gguf = "general.sampling.penalty_repeat",
     .help = "for prompt and output tokens"},
    {.name = "presence_penalty",
     .member = &SamplingParams::presence_penalty,
     .min = -2,
     .max = 2,
     .off = 0,
     .in_generation_config = false,
     .help = "for output tokens, once"},
    {.name = "frequency_penalty",
     .member = &SamplingParams::frequency_penalty,
     .min = -2,
     .max = 2,
     .off = 0,
     .in_generation_config = false,
     .help = "for output tokens, per occurrence"},
});

// The row of this name; null: none.
const SamplingParameter* find_sampling_parameter(const std::string& name);

// Per field the request's value, else the model's, else the default. All table fields are set.
SamplingParams resolve_sampling(SamplingParams request, const SamplingParams& model);

}  // namespace tandem
