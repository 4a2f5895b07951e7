#include "client/cli/provenance.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem::cli {
namespace {

constexpr char kGreen[] = "\x1b[32m", kMagenta[] = "\x1b[35m", kCyan[] = "\x1b[36m",
               kPlain[] = "\x1b[0m";

v1::Token token(const std::string& text, v1::Source proposed,
                v1::Source confirmed = v1::SOURCE_LARGE, bool corrected = false) {
  v1::Token t;
  t.set_text(text);
  t.set_proposed(proposed);
  t.set_confirmed(confirmed);
  t.set_corrected(corrected);
  return t;
}

v1::Chunk chunk(const std::string& text, const std::vector<v1::Token>& tokens) {
  v1::Chunk c;
  c.set_text(text);
  for (const v1::Token& t : tokens) *c.add_tokens() = t;
  return c;
}

std::string without_colours(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      out += text[i];
    }
  }
  return out;
}

TEST(Provenance, OriginsOfTokens) {
  EXPECT_EQ(origin_of(token("", v1::SOURCE_LARGE)), Origin::kLarge);
  EXPECT_EQ(origin_of(token("", v1::SOURCE_SMALL)), Origin::kSmall);
  EXPECT_EQ(origin_of(token("", v1::SOURCE_SMALL, v1::SOURCE_SMALL)), Origin::kUnchecked);
  EXPECT_EQ(origin_of(token("", v1::SOURCE_NGRAM)), Origin::kNgram);
  EXPECT_EQ(origin_of(token("", v1::SOURCE_EARLY_HEAD)), Origin::kOther);
  v1::Token by_mask = token("", v1::SOURCE_MASK);
  for (const Origin origin : {Origin::kMask1, Origin::kMask2, Origin::kMask3, Origin::kMask3}) {
    EXPECT_EQ(origin_of(by_mask), origin);
    by_mask.set_proposed_index(by_mask.proposed_index() + 1);
  }
  EXPECT_EQ(origin_of(token("", v1::SOURCE_LARGE, v1::SOURCE_LARGE, true)), Origin::kCorrected);
}

TEST(Provenance, NeighboursOfOneOriginShareTheirColour) {
  Painter painter;
  EXPECT_EQ(
      painter.paint(chunk("def f(x):", {token("def", v1::SOURCE_SMALL),
                                        token(" f", v1::SOURCE_SMALL), token("(", v1::SOURCE_LARGE),
                                        token("x", v1::SOURCE_LARGE, v1::SOURCE_LARGE, true),
                                        token("):", v1::SOURCE_NGRAM)})),
      std::string(kGreen) + "def f" + kPlain + "(" + kMagenta + "x" + kPlain + kCyan +
          "):" + kPlain);
  EXPECT_EQ(painter.paint(chunk("\n", {token("\n", v1::SOURCE_LARGE)})), "\n");
}

TEST(Provenance, ACharacterOfSeveralTokensTakesTheColourOfOneOfThem) {
  Painter painter;
  EXPECT_EQ(painter.paint(chunk("", {token("\uFFFD", v1::SOURCE_SMALL)})), "");
  EXPECT_EQ(
      painter.paint(chunk("é!", {token("\uFFFD", v1::SOURCE_SMALL), token("!", v1::SOURCE_LARGE)})),
      "é!");
}

TEST(Provenance, TextThatWasHeldBackGetsItsTokensColour) {
  Painter painter;
  EXPECT_EQ(
      painter.paint(chunk("a", {token("a", v1::SOURCE_LARGE), token(" b", v1::SOURCE_SMALL)})),
      "a");
  EXPECT_EQ(painter.paint(chunk(" bc", {token("c", v1::SOURCE_LARGE)})),
            std::string(kGreen) + " b" + kPlain + "c");
}

TEST(Provenance, WithoutTextsNothingIsColoured) {
  Painter painter;
  EXPECT_EQ(painter.paint(chunk("ab", {token("", v1::SOURCE_SMALL), token("", v1::SOURCE_LARGE)})),
            "ab");
}

TEST(Provenance, TheTextIsNeverChanged) {
  std::mt19937 random(1);
  const std::vector<std::string> words = {"a", " b", "\n", "é", "\uFFFD", "def", "  ", "aa"};
  for (int round = 0; round < 200; ++round) {
    Painter painter;
    std::string text, shown;
    for (int i = 0; i < 20; ++i) {
      std::string part;
      std::vector<v1::Token> tokens;
      for (size_t n = random() % 4; n > 0; --n) {
        const std::string& word = words[random() % words.size()];
        // Now and then the text says something else than the tokens.
        part += random() % 5 == 0 ? words[random() % words.size()] : word;
        tokens.push_back(token(word, random() % 2 == 0 ? v1::SOURCE_SMALL : v1::SOURCE_LARGE));
      }
      text += part;
      shown += painter.paint(chunk(part, tokens));
    }
    EXPECT_EQ(without_colours(shown), text);
  }
}

TEST(Provenance, LegendGivesShares) {
  const std::vector<v1::Token> tokens = {token("", v1::SOURCE_SMALL), token("", v1::SOURCE_SMALL),
                                         token("", v1::SOURCE_LARGE),
                                         token("", v1::SOURCE_LARGE, v1::SOURCE_LARGE, true)};
  EXPECT_EQ(legend(v1::METHOD_BILD, tokens, false),
            "small, accepted 50 %  corrected 25 %  large 25 %");
  EXPECT_EQ(legend(v1::METHOD_BILD, tokens, true), std::string(kGreen) + "small, accepted 50 %" +
                                                       kPlain + "  " + kMagenta + "corrected 25 %" +
                                                       kPlain + "  large 25 %");
  EXPECT_EQ(legend(v1::METHOD_BILD, {}, true), "");
  const v1::Token written = token("", v1::SOURCE_SMALL, v1::SOURCE_SMALL);
  EXPECT_EQ(legend(v1::METHOD_LLM_TO_SLM, {written}, false),
            "prompt, encoded by large  small, not verified 100 %");
  EXPECT_EQ(legend(v1::METHOD_LLM_TO_SLM, {written}, true),
            std::string("\x1b[2mprompt, encoded by large") + kPlain +
                "  \x1b[33msmall, not verified 100 %" + kPlain);
  EXPECT_EQ(legend(v1::METHOD_LLM_TO_SLM, {}, true), "");
}

TEST(Provenance, FiguresOfMethods) {
  v1::MethodStats stats;
  EXPECT_EQ(method_figures(v1::METHOD_AUTOREGRESSIVE, stats), "");
  stats.set_small_tokens(3);
  EXPECT_EQ(method_figures(v1::METHOD_LLM_TO_SLM, stats),
            "answer of the small model, conditioned on the large one");
  for (const int n : {1, 0, 3}) stats.add_accept_lengths(n);  // 4 drafts, 6 tokens kept
  stats.set_draft_tokens(10);
  EXPECT_EQ(method_figures(v1::METHOD_SPECULATIVE, stats), "1.50 of 2.50 draft tokens accepted");
  EXPECT_EQ(
      method_figures(v1::METHOD_LLM_TO_SLM, stats),
      "drafts of a small model conditioned on the large one, 1.50 of 2.50 draft tokens accepted");
  stats.set_fallbacks(0);
  stats.set_rollbacks(1);
  stats.set_rolled_back_tokens(2);
  EXPECT_EQ(method_figures(v1::METHOD_BILD, stats),
            "0 fallbacks, 1 rollback of 2 tokens, 1.50 of 2.50 draft tokens accepted");
  v1::MethodStats ppd;
  ppd.set_match_rate(0.5);
  ppd.set_rounds(10);
  ppd.set_main_layers(72);
  ppd.set_predicted_main_layers(68);
  ppd.set_lower_seconds(1.5);
  ppd.set_upper_seconds(1);
  ppd.set_barrier_seconds(0.125);
  EXPECT_EQ(method_figures(v1::METHOD_PPD, ppd),
            "50 % of 10 tokens matched, 72 sequential layers (Theorem 4.1: 68), "
            "1.50 s up to the early layer, 1.00 above it, 0.12 waiting for workers");
}

}  // namespace
}  // namespace tandem::cli
