#include "engine/sched/sequence_output.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/mutation.h"

namespace tandem {
namespace {

bool contains(const std::vector<Token>& tokens, Token t) {
  return std::find(tokens.begin(), tokens.end(), t) != tokens.end();
}

}  // namespace

bool SequenceOutput::is_end(Token token) const {
  return contains(stops_->eos, token) || contains(stops_->stop_tokens, token);
}

int SequenceOutput::end_tokens() const {
  return static_cast<int>(stops_->eos.size() + stops_->stop_tokens.size());
}

bool SequenceOutput::ends(std::span<const Token> tentative) const {
  if (emitted_ + static_cast<int64_t>(tentative.size()) >= stops_->max_new_tokens) return true;
  if (std::any_of(tentative.begin(), tentative.end(), [this](Token t) { return is_end(t); })) {
    return true;
  }
  return stops_->text && stops_->text->would_stop(tentative);
}

bool SequenceOutput::take(Emitted* e) {
  if (is_end(e->token)) {
    end_with(contains(stops_->eos, e->token) ? FinishReason::kEos : FinishReason::kStopToken);
    e->end = stops_->include_end;
    return e->end;
  }
  tokens_.push_back(e->token);
  if (stops_->text) {
    stop_index_ = stops_->text->push(e->token);
    if (stop_index_ >= 0) end_with(FinishReason::kStopSequence);
  }
  if (!ended_ && emitted_ + 1 >= stops_->max_new_tokens) end_with(FinishReason::kMaxTokens);
  return true;
}

int64_t SequenceOutput::emit(std::span<Emitted> tokens, MethodStats* stats) {
  TANDEM_CHECK(!ended_);
  size_t taken = 0;
  while (taken < tokens.size()) {
    if (ended_ && !mutated(Mutation::kOvershootStop)) break;
    Emitted& e = tokens[taken];
    if (!take(&e) && !mutated(Mutation::kOvershootStop)) break;
    ++taken;
    ++emitted_;
    if (!e.end) stats->count_token(e.provenance);
  }
  if (mutated(Mutation::kDropToken) && taken > 2) --taken;
  return static_cast<int64_t>(taken);
}

}  // namespace tandem
