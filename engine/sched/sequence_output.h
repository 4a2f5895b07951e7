// A sequence's tokens: its prompt and what was emitted, and when that is enough.
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
  // Stop rules are the spec's, and change with what is emitted. It outlives this.
  explicit SequenceOutput(SequenceSpec* spec) : stops_(&spec->stops), tokens_(spec->prompt) {}

  const std::vector<Token>& tokens() const { return tokens_; }
  int64_t emitted() const { return emitted_; }
  int remaining() const { return stops_->max_new_tokens - static_cast<int>(emitted_); }
  bool is_end(Token token) const;
  int end_tokens() const;
  // Would emitting `tentative` end it?
  bool ends(std::span<const Token> tentative) const;

  // Makes `tokens` final up to the end. Counts them by who proposed them, and returns how many
  // there are: the first ones. REQUIRES: !ended().
  int64_t emit(std::span<Emitted> tokens, MethodStats* stats);
  void end_with(FinishReason reason) {
    ended_ = true;
    reason_ = reason;
  }
  bool ended() const { return ended_; }
  FinishReason reason() const { return reason_; }
  int stop_index() const { return stop_index_; }

 private:
  // Takes one token. False: it was not taken.
  bool take(Emitted* token);

  StopRules* const stops_;
  std::vector<Token> tokens_;
  bool ended_ = false;
  FinishReason reason_ = FinishReason::kMaxTokens;
  int stop_index_ = -1;
  int64_t emitted_ = 0;
};

}  // namespace tandem
