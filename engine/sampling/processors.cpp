#include "engine/sampling/processors.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "engine/pass/constraint.h"

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
  if (p.has_penalties()) {
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

bool is_constrained(const TokenCounts& seen) {
  return std::ranges::all_of(seen.output(), [](Token t) { return t >= 0; });
}

bool apply_constraint(const LegalTokens* legal, std::span<const Token> ends,
                      std::span<float> logits) {
  if (legal == nullptr) return true;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr size_t kBits = 32;
  bool left = false;
  bool valid = true;
  for (size_t begin = 0; begin < logits.size(); begin += kBits) {
    const size_t word = begin / kBits;
    const uint32_t bits = word < legal->bits.size() ? legal->bits[word] : 0;
    const size_t end = std::min(begin + kBits, logits.size());
    for (size_t i = begin; i < end; ++i) {
      const bool banned = (bits >> (i - begin) & 1) == 0;
      const float x = logits[i] - (banned ? kInfinity : 0.0F);  // NaN and +Inf stay detectable
      logits[i] = x;
      left |= x > -kInfinity;
      valid &= x < kInfinity;
    }
  }
  if (left || !valid) return true;
  const auto known = std::ranges::find_if(
      ends, [&](Token t) { return t >= 0 && static_cast<size_t>(t) < logits.size(); });
  logits[known == ends.end() ? 0 : static_cast<size_t>(*known)] = 0;
  return false;
}

}  // namespace tandem::sampling
