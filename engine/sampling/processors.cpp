#include "engine/sampling/processors.h"

#include <limits>
#include <map>
#include <optional>

namespace tandem::sampling {

Processors processors_of(const SamplingParams& params) {
  Processors out;
  const auto set = [](const std::optional<double>& from, float* to) {
    if (from) *to = static_cast<float>(*from);
  };
  set(params.repetition_penalty, &out.repetition_penalty);
  set(params.presence_penalty, &out.presence_penalty);
  set(params.frequency_penalty, &out.frequency_penalty);
  std::map<Token, float> bias;
  for (const auto& [id, value] : params.logit_bias) {
    if (value != 0) bias[static_cast<Token>(id)] = static_cast<float>(value);
  }
  for (const int64_t id : params.bad_token_ids) {
    bias[static_cast<Token>(id)] = -std::numeric_limits<float>::infinity();
  }
  out.bias.assign(bias.begin(), bias.end());
  return out;
}

void apply_processors(const Processors& p, const TokenCounts& seen, int position,
                      std::span<float> logits) {
  const auto has = [&](Token t) { return t >= 0 && static_cast<size_t>(t) < logits.size(); };
  for (const auto& [token, bias] : p.bias) {
    if (has(token)) logits[static_cast<size_t>(token)] += bias;
  }
  if (p.counts_tokens()) {
    for (const TokenCounts::Count& count : seen.counts()) {
      if (!has(count.token)) continue;
      float& x = logits[static_cast<size_t>(count.token)];
      const float more = x * p.repetition_penalty;
      const float less = x / p.repetition_penalty;
      x = x < 0 ? more : less;  // both computed: a branch on the sign would be mispredicted
      if (count.output == 0) continue;
      x -= p.frequency_penalty * static_cast<float>(count.output) + p.presence_penalty;
    }
  }
  if (position + 1 - p.prompt_tokens < p.min_new_tokens) {
    for (const Token t : p.ends) {
      if (has(t)) logits[static_cast<size_t>(t)] -= std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace tandem::sampling
