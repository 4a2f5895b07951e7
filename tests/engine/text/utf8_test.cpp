#include "engine/text/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem {
namespace {

std::string assemble(std::string_view bytes) {
  Utf8Assembler assembler;
  std::string out;
  assembler.push(bytes, out);
  assembler.finish(out);
  return out;
}

TEST(Utf8, PrefixStopsAtTheFirstBadByte) {
  EXPECT_EQ(valid_utf8_prefix(""), 0u);
  EXPECT_EQ(valid_utf8_prefix("aé漢😀"), 10u);
  EXPECT_EQ(valid_utf8_prefix("a\xffz"), 1u);
  EXPECT_EQ(valid_utf8_prefix("é\xc3"), 2u);
  EXPECT_EQ(valid_utf8_prefix("\xed\x9f\xbf\xed\xa0\x80"), 3u);          // U+D7FF, then a surrogate
  EXPECT_EQ(valid_utf8_prefix("\xf4\x8f\xbf\xbf\xf4\x90\x80\x80"), 4u);  // U+10FFFF, then above
  EXPECT_EQ(valid_utf8_prefix("\xe0\x9f\xbf"), 0u);                      // longer than needed
  EXPECT_EQ(valid_utf8_prefix(std::string("\0x", 2)), 2u);
}

// The table of the Unicode standard, section 3.9, and its neighbours.
TEST(Utf8, OneReplacementForEachMaximalPart) {
  EXPECT_EQ(assemble("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(assemble("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(assemble("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41\uFFFD\uFFFD\x42");
  EXPECT_EQ(assemble("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), "\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(assemble("\xf0\x9f\x98"), "\uFFFD");
  EXPECT_EQ(assemble("\xf0\x9f\x98\xc3\xa9"), "\uFFFDé");
}

TEST(Utf8, RandomBytesBecomeValidAndValidTextStays) {
  std::mt19937 random(3);
  const uint8_t interesting[] = {0x00, 0x41, 0x7f, 0x80, 0xbf, 0xc1, 0xc2, 0xdf, 0xe0, 0xa0,
                                 0xe4, 0xed, 0x9f, 0xef, 0xf0, 0x90, 0xf4, 0x8f, 0xf5, 0xff};
  for (int n = 0; n < 20000; ++n) {
    std::string bytes;
    for (size_t i = random() % 8; i > 0; --i) {
      bytes.push_back(static_cast<char>(interesting[random() % std::size(interesting)]));
    }
    const std::string text = assemble(bytes);
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
    ASSERT_EQ(text == bytes, valid_utf8_prefix(bytes) == bytes.size());
  }
}

TEST(Utf8, NothingIsHeldAtABoundary) {
  Utf8Assembler assembler;
  std::string out;
  EXPECT_TRUE(assembler.push_byte('\xc3', out));
  EXPECT_FALSE(assembler.at_boundary());
  EXPECT_EQ(out, "");
  EXPECT_FALSE(assembler.push_byte('a', out));
  EXPECT_TRUE(assembler.at_boundary());
  EXPECT_EQ(out, "\uFFFDa");
  assembler.finish(out);
  EXPECT_EQ(out, "\uFFFDa");
}

}  // namespace
}  // namespace tandem
