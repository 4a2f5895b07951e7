// Final tokens and stop conditions.
#include "engine/sched/sequence_output.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// Ends a text with the token 50.
class Fifty final : public TextStops {
 public:
  std::unique_ptr<TextStops> clone() const override { return std::make_unique<Fifty>(); }
  int push(Token token) override { return token == 50 ? 3 : -1; }
  bool would_stop(std::span<const Token> tokens) const override {
    return std::find(tokens.begin(), tokens.end(), 50) != tokens.end();
  }
};

SequenceSpec spec_of(int max_new_tokens, bool include_end) {
  SequenceSpec spec;
  spec.prompt = {1, 2};
  spec.stops.eos = {9};
  spec.stops.stop_tokens = {8};
  spec.stops.include_end = include_end;
  spec.stops.max_new_tokens = max_new_tokens;
  spec.stops.text = std::make_unique<Fifty>();
  return spec;
}

struct Out {
  explicit Out(int max_new_tokens, bool include_end = false)
      : spec(spec_of(max_new_tokens, include_end)) {}
  std::vector<Token> emit(const std::vector<Token>& tokens) {
    std::vector<Emitted> all;
    for (const Token t : tokens) all.push_back({t, {Source::kSmall, Source::kLarge}});
    all.resize(static_cast<size_t>(output.emit(all, &stats)));
    std::vector<Token> taken;
    for (const Emitted& e : all) taken.push_back(e.token);
    return taken;
  }
  using Tokens = std::vector<Token>;

  SequenceSpec spec;
  SequenceOutput output{&spec};
  MethodStats stats;
};

TEST(SequenceOutput, TokensFollowThePrompt) {
  Out o(5);
  EXPECT_EQ(o.emit({3, 4}), (Out::Tokens{3, 4}));
  EXPECT_EQ(o.output.tokens(), (Out::Tokens{1, 2, 3, 4}));
  EXPECT_EQ(o.output.remaining(), 3);
  EXPECT_FALSE(o.output.ended());
  EXPECT_EQ(o.stats.small_tokens, 2);
}

TEST(SequenceOutput, CountsWhichMaskOrCandidateProposed) {
  MethodStats stats;
  stats.count_token({Source::kMask, Source::kLarge, false, 2});
  stats.count_token({Source::kMask, Source::kLarge, false, 0});
  stats.count_token({Source::kEarlyHead, Source::kLarge, false, 2});
  stats.count_token({Source::kSmall, Source::kLarge});
  stats.count_token({});
  EXPECT_EQ(stats.tokens_by_index, (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(stats.small_tokens, 4);
  EXPECT_EQ(stats.large_tokens, 1);
}

TEST(SequenceOutput, CutsAtTheLastTokenThatWasAskedFor) {
  Out o(3);
  EXPECT_EQ(o.emit({3, 4, 5, 6}), (Out::Tokens{3, 4, 5}));
  EXPECT_TRUE(o.output.ended());
  EXPECT_EQ(o.output.reason(), FinishReason::kMaxTokens);
  EXPECT_EQ(o.output.emitted(), 3);
}

TEST(SequenceOutput, AnEndTokenIsNoPartOfItUnlessAskedFor) {
  Out o(5);
  EXPECT_EQ(o.emit({3, 9, 4}), (Out::Tokens{3}));
  EXPECT_EQ(o.output.reason(), FinishReason::kEos);
  EXPECT_EQ(o.stats.small_tokens, 1);
  Out shown(5, /*include_end=*/true);
  EXPECT_EQ(shown.emit({3, 8, 4}), (Out::Tokens{3, 8}));
  EXPECT_EQ(shown.output.reason(), FinishReason::kStopToken);
  EXPECT_EQ(shown.output.tokens(), (Out::Tokens{1, 2, 3}));
  EXPECT_EQ(shown.output.emitted(), 2);
}

TEST(SequenceOutput, AStopStringEndsWithTheTokenThatCompletesIt) {
  Out o(2);
  EXPECT_EQ(o.emit({3, 50, 4}), (Out::Tokens{3, 50}));
  EXPECT_EQ(o.output.reason(), FinishReason::kStopSequence) << "not the length, of the two";
  EXPECT_EQ(o.output.stop_index(), 3);
}

TEST(SequenceOutput, PredictsWhatWouldEndIt) {
  Out o(3);
  EXPECT_FALSE(o.output.ends(Out::Tokens{3, 4}));
  EXPECT_TRUE(o.output.ends(Out::Tokens{3, 4, 5})) << "length";
  EXPECT_TRUE(o.output.ends(Out::Tokens{9}));
  EXPECT_TRUE(o.output.ends(Out::Tokens{8}));
  EXPECT_TRUE(o.output.ends(Out::Tokens{50}));
  EXPECT_EQ(o.output.end_tokens(), 2);
}

}  // namespace
}  // namespace tandem
