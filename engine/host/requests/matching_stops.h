// Stop strings for the loop. They pass through the same decoder and matcher as the output.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "engine/sched/spec.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/stream_decoder.h"

namespace tandem {

class MatchingStops final : public TextStops {
 public:
  MatchingStops(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                absl::Span<const Token> context, absl::Span<const Token> shown,
                std::shared_ptr<const StopStrings> stops)
      : decoder_(std::move(tokenizer), skip_special_tokens, context, shown),
        matcher_(std::move(stops), false) {}

  std::unique_ptr<TextStops> clone() const override {
    return std::make_unique<MatchingStops>(*this);
  }
  int push(Token token) override { return push(decoder_, matcher_, token); }
  bool would_stop(std::span<const Token> tokens) const override {
    StreamDecoder decoder = decoder_;
    StopMatcher matcher = matcher_;
    return std::any_of(tokens.begin(), tokens.end(),
                       [&](Token t) { return push(decoder, matcher, t) >= 0; });
  }

 private:
  static int push(StreamDecoder& decoder, StopMatcher& matcher, Token token) {
    std::string text, released;
    decoder.push(token, text);
    const std::optional<size_t> stop = matcher.push(text, released);
    return stop ? static_cast<int>(*stop) : -1;
  }

  StreamDecoder decoder_;
  StopMatcher matcher_;
};

}  // namespace tandem
