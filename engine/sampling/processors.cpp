#include "engine/sampling/processors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "engine/pass/constraint.h"

namespace tandem::sampling {
namespace {

// Subtracted from a logit: a ban. Not "kInfinity": the module is also compiled as one source.
constexpr float kBan = std::numeric_limits<float>::infinity();

struct Penalties {
  float repetition, frequency, presence;

  // count: of the token in the output. One rounding of the subtrahend, as on devices.
  float apply(float x, int count) const {
    const float more = x * repetition;
    const float less = x / repetition;
    x = x < 0 ? more : less;  // both computed: a branch on the sign would be mispredicted
    return count > 0 ? x - std::fma(frequency, static_cast<float>(count), presence) : x;
  }
};

bool bans_ends(const Processors& p, int position) {
  return position + 1 - p.prompt_tokens < p.min_new_tokens;
}

}  // namespace

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
    const Penalties penalties{p.repetition_penalty, p.frequency_penalty, p.presence_penalty};
    for (const TokenCounts::Count& count : seen.counts()) {
      if (!has(count.token)) continue;
      float& x = logits[static_cast<size_t>(count.token)];
      x = penalties.apply(x, count.output);
    }
  }
  if (bans_ends(p, position)) {
    for (const Token t : p.ends) {
      if (has(t)) logits[static_cast<size_t>(t)] -= kBan;
    }
  }
}

void changes_of(const Processors& p, const TokenCounts& seen, int position, RowQuestion& question,
                std::vector<RowChange>& changes) {
  const auto has = [&](Token t) { return t >= 0 && t < question.vocab; };
  question.repetition = p.repetition_penalty;
  question.frequency = p.frequency_penalty;
  question.presence = p.presence_penalty;
  const auto first = static_cast<std::ptrdiff_t>(changes.size());
  std::vector<bool> made(p.bias.size());  // with a penalty
  if (p.has_penalties()) {
    for (const TokenCounts::Count& count : seen.counts()) {
      if (!has(count.token)) continue;
      RowChange& change = changes.emplace_back();
      change.token = count.token;
      change.count = count.output;
      const auto bias =
          std::ranges::lower_bound(p.bias, count.token, {}, [](const auto& b) { return b.first; });
      if (bias == p.bias.end() || bias->first != count.token) continue;
      change.bias = bias->second;
      made[static_cast<size_t>(bias - p.bias.begin())] = true;
    }
  }
  for (size_t i = 0; i < p.bias.size(); ++i) {
    const auto& [token, bias] = p.bias[i];
    if (!made[i] && has(token)) changes.push_back({.token = token, .bias = bias});
  }
  if (!bans_ends(p, position)) return;
  for (const Token t : p.ends) {
    if (!has(t)) continue;
    const auto known = std::find_if(changes.begin() + first, changes.end(),
                                    [&](const RowChange& c) { return c.token == t; });
    // Before the penalties, which keep -Inf.
    RowChange& change = known != changes.end() ? *known : changes.emplace_back();
    change.token = t;
    change.bias = -kBan;
  }
}

void apply_changes(const RowQuestion& q, const RowChanges& all, std::span<float> logits) {
  const Penalties penalties{q.repetition, q.frequency, q.presence};
  std::vector<Token> drafts;
  for (int32_t i = q.first_draft; i < q.first_draft + q.drafts; ++i) {
    const Token t = all.drafts[i].of(all.kept[all.drafts[i].answer]);
    if (t >= 0 && static_cast<size_t>(t) < logits.size()) drafts.push_back(t);
  }
  for (int32_t i = q.first_change; i < q.first_change + q.changes; ++i) {
    const RowChange& change = all.changes[i];
    float& x = logits[static_cast<size_t>(change.token)];
    x += change.bias;
    const auto more = static_cast<int32_t>(std::erase(drafts, change.token));
    const int32_t count = more > 0 ? std::max(change.count, 0) + more : change.count;
    if (count >= 0) x = penalties.apply(x, count);
  }
  while (!drafts.empty()) {
    const Token t = drafts.back();
    float& x = logits[static_cast<size_t>(t)];
    x = penalties.apply(x, static_cast<int>(std::erase(drafts, t)));
  }
}

bool is_constrained(const TokenCounts& seen) {
  return std::ranges::all_of(seen.output(), [](Token t) { return t >= 0; });
}

bool apply_constraint(const LegalTokens* legal, std::span<const Token> ends,
                      std::span<float> logits) {
  if (legal == nullptr) return true;
  constexpr size_t kBits = 32;
  bool left = false;
  bool valid = true;
  for (size_t begin = 0; begin < logits.size(); begin += kBits) {
    const size_t word = begin / kBits;
    const uint32_t bits = word < legal->bits.size() ? legal->bits[word] : 0;
    const size_t end = std::min(begin + kBits, logits.size());
    for (size_t i = begin; i < end; ++i) {
      const bool banned = (bits >> (i - begin) & 1) == 0;
      const float x = logits[i] - (banned ? kBan : 0.0F);  // NaN and +Inf stay detectable
      logits[i] = x;
      left |= x > -kBan;
      valid &= x < kBan;
    }
  }
  if (left || !valid) return true;
  const auto known = std::ranges::find_if(
      ends, [&](Token t) { return t >= 0 && static_cast<size_t>(t) < logits.size(); });
  logits[known == ends.end() ? 0 : static_cast<size_t>(*known)] = 0;
  return false;
}

}  // namespace tandem::sampling
