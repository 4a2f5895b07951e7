#include "engine/host/requests/listeners.h"

#include <cmath>

namespace tandem {

absl::StatusOr<ScoreResult> ScoreListener::result() const {
  ScoreResult result;
  const auto prompt = static_cast<size_t>(request.prompt_tokens);
  const auto begin = static_cast<size_t>(request.begin);
  for (size_t i = begin < prompt ? 0 : prompt; i < request.tokens.size(); ++i) {
    TokenInfo info;
    info.id = request.tokens[i];
    if (i >= begin) {
      const Scored& s = scored_[i - begin];
      info.logprob = s.logprob;
      for (const Ranked& r : s.top) info.top.emplace_back(r.token, r.logprob);
      if (i >= prompt) result.total_logprob += static_cast<double>(s.logprob);
    }
    (i < prompt ? result.prompt : result.continuation).push_back(std::move(info));
  }
  result.usage.prompt_tokens = request.prompt_tokens;
  return result;
}

absl::StatusOr<EmbedResult> EmbedListener::result() const {
  EmbedResult result;
  std::vector<double> state = pooled_;
  for (const DenseLayer& dense : request.settings->dense) state = dense.of(state);
  double squares = 0;
  for (size_t i = 0; i < request.dimensions; ++i) squares += state[i] * state[i];
  if (request.normalize && squares == 0) {
    return absl::InternalError("the embedding is zero, which has no direction");
  }
  const double scale = request.normalize ? 1 / std::sqrt(squares) : 1;
  for (size_t i = 0; i < request.dimensions; ++i) {
    result.values.push_back(static_cast<float>(state[i] * scale));
  }
  result.usage.prompt_tokens = static_cast<int64_t>(request.tokens.size());
  return result;
}

}  // namespace tandem
