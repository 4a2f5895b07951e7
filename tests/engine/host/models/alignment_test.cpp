// The same cases as tests/tuning/fusion_test.py: training and server align rows alike.
#include "engine/host/models/alignment.h"

#include <gmock/gmock.h>

#include "tests/engine/host/byte_level.h"

namespace tandem {
namespace {

using testing::byte_level_tokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Merges = std::vector<std::pair<std::string, std::string>>;

std::shared_ptr<const Tokenizer> merging(const Merges& merges) {
  return *Tokenizer::parse("bytes", byte_level_tokenizer(merges), "{}");
}

class Alignment : public ::testing::Test {
 protected:
  // Both encode `text`, or a replacement for one of them.
  std::vector<int> rows(const std::string& text, const Tokenizer& large, const Tokenizer& small,
                        const std::string& read = "", const std::string& written = "") const {
    return align_tokens(text, large, cut(large, read.empty() ? text : read), small,
                        cut(small, written.empty() ? text : written));
  }
  // "^" at the beginning: the special token.
  static std::vector<Token> cut(const Tokenizer& tokenizer, std::string text) {
    std::vector<Token> tokens;
    if (text[0] == '^') {
      tokens.push_back(tokenizer.vocab_size() - 1);
      EXPECT_TRUE(tokenizer.is_special(tokens[0]));
      text.erase(0, 1);
    }
    const std::vector<Token> own = *tokenizer.encode(text, false);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  }

  const std::shared_ptr<const Tokenizer> abc_de = merging({{"a", "b"}, {"ab", "c"}, {"d", "e"}}),
                                         bc = merging({{"b", "c"}}), letters = merging({});
};

TEST_F(Alignment, ATokenIsAlignedWithTheTokenOfItsLastByte) {
  EXPECT_THAT(rows("abcdef", *abc_de, *bc), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(rows("abcdef", *bc, *abc_de), ElementsAre(1, 3, 4));
}

TEST_F(Alignment, ABlankBeforeTheTextHasNoBytes) {
  const auto ab_cd = merging({{"a", "b"}, {"c", "d"}});
  const auto blank = merging({{"a", "b"}, {"\u0120", "ab"}, {"c", "d"}});
  EXPECT_THAT(rows("abcd", *ab_cd, *blank, "abcd", " abcd"), ElementsAre(0, 1));
  EXPECT_THAT(rows("abcd", *blank, *ab_cd, " abcd", "abcd"), ElementsAre(0, 1));
  EXPECT_THAT(rows("abcd", *blank, *letters, " abcd", " abcd"), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(rows(" abcd", *blank, *ab_cd), ElementsAre(0, 0, 1));  // the text's own
}

TEST_F(Alignment, SpecialTokensThatTheTextLacksHaveNoBytes) {
  EXPECT_THAT(rows("xyz", *letters, *letters, "^xyz"), ElementsAre(1, 2, 3));
  EXPECT_THAT(rows("xyz", *letters, *letters, "", "^xyz"), ElementsAre(0, 0, 1, 2));
}

// A chat template spells special tokens. A tokenizer without them encodes letters.
TEST_F(Alignment, SpecialTokensOfTheTextHaveTheirBytes) {
  const auto bytes = Tokenizer::bytes();
  EXPECT_THAT(rows("<s>xy<s>z", *bytes, *letters), ElementsAre(2, 3, 4, 7, 8));
  EXPECT_THAT(rows("<s>xy<s>z", *letters, *bytes), ElementsAre(0, 0, 0, 1, 2, 3, 3, 3, 4));
  EXPECT_THAT(rows("x <s> y", *letters, *letters, "x<s>y"), ElementsAre(0, 1, 1, 2, 2));
}

TEST_F(Alignment, OtherLengthsAreScaled) {
  EXPECT_THAT(rows("wx", *letters, *letters, "wxyz"), ElementsAre(1, 3));
}

TEST_F(Alignment, ATokenizerThatSpellsItsTextHasOne) {
  EXPECT_EQ(why_unaligned(*abc_de), "");
  EXPECT_EQ(why_unaligned(*Tokenizer::bytes()), "");
  const auto words = *Tokenizer::parse(
      "words",
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
      R"("pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,)"
      R"("model":{"type":"WordLevel","vocab":{"the":0,"fox":1,"?":2},"unk_token":"?"}})",
      "{}");
  EXPECT_THAT(why_unaligned(*words), HasSubstr("its tokens spell \" ? ? ?"));
}

}  // namespace
}  // namespace tandem
