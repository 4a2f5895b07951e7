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

void TokenCounts::clear(int prompt_tokens) {
  for (const Count& c : counts_) index_[static_cast<size_t>(c.token)] = -1;
  counts_.clear();
  path_.clear();
  prompt_tokens_ = prompt_tokens;
}

void TokenCounts::push(Token t) {
  const int output = rows() >= prompt_tokens_ ? 1 : 0;
  path_.push_back(t);
  if (t < 0) return;
  const auto token = static_cast<size_t>(t);
  if (token >= index_.size()) index_.resize(token + 1, -1);
  if (index_[token] < 0) {
    index_[token] = static_cast<int32_t>(counts_.size());
    counts_.push_back({t, 0, 0});
  }
  Count& count = counts_[static_cast<size_t>(index_[token])];
  ++count.all;
  count.output += output;
}

void TokenCounts::pop() {
  const Token t = path_.back();
  path_.pop_back();
  if (t < 0) return;
  int32_t& index = index_[static_cast<size_t>(t)];
  Count& count = counts_[static_cast<size_t>(index)];
  count.output -= rows() >= prompt_tokens_ ? 1 : 0;
  if (--count.all > 0) return;
  // Tokens that came to the path after this one have left it before, so its count is the last.
  counts_.pop_back();
  index = -1;
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
      x = x < 0 ? x * p.repetition_penalty : x / p.repetition_penalty;
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
