// A sequence's tokens, prompt and answer, and its stop conditions.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/outcome.h"
#include "engine/decode/gen.h"
#include "engine/sched/spec.h"

namespace tandem {

class SequenceOutput {
 public:
  // `spec` outlives it; emitting updates the state of its stop rules.
  explicit SequenceOutput(SequenceSpec* spec) : stops_(&spec->stops), tokens_(spec->prompt) {}

  const std::vector<Token>& tokens() const { return tokens_; }
  int64_t emitted() const { return emitted_; }
  int remaining() const { return stops_->max_new_tokens - static_cast<int>(emitted_); }
  bool is_end(Token token) const;
  int end_tokens() const;
  // Would emitting `tentative` end it?
  bool ends(std::span<const Token> tentative) const;

  // Makes `tokens` final, up to the one that ends the sequence, and counts them by proposer.
  // Returns how many of the leading tokens are final. REQUIRES: !ended().
  int64_t emit(std::span<Emitted> tokens, MethodStats* stats);
  void end_with(FinishReason reason) {
    ended_ = true;
    reason_ = reason;
  }
  bool ended() const { return ended_; }
  FinishReason reason() const { return reason_; }
  int stop_index() const { return stop_index_; }

 private:
  // Appends one token. False: it ends the sequence and is not part of it.
  bool take(Emitted* token);

  StopRules* const stops_;
  std::vector<Token> tokens_;
  bool ended_ = false;
  FinishReason reason_ = FinishReason::kMaxTokens;
  int stop_index_ = -1;
  int64_t emitted_ = 0;
};

}  // namespace tandem
