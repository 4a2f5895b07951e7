#include <gtest/gtest.h>

#include "engine/text/stream_decoder.h"
#include "engine/text/tokenizer.h"

namespace tandem {
namespace {

TEST(ByteTokenizer, EveryByteIsItsOwnToken) {
  const auto tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  std::string text;
  std::vector<Token> expected;
  for (const char32_t c : U"a \n\t~é漢😀\x01") {
    if (c == 0) continue;
    std::string utf8;
    if (c < 0x80) {
      utf8 = {static_cast<char>(c)};
    } else if (c < 0x800) {
      utf8 = {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      utf8 = {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 63)),
              static_cast<char>(0x80 | (c & 63))};
    } else {
      utf8 = {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63)),
              static_cast<char>(0x80 | ((c >> 6) & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    text += utf8;
    for (const char b : utf8) expected.push_back(static_cast<unsigned char>(b));
  }
  const auto ids = tokenizer->encode(text, true);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, expected);
  EXPECT_EQ(*tokenizer->decode(*ids, true), text);

  StreamDecoder decoder(tokenizer, true);
  std::string streamed;
  for (const Token t : *ids) decoder.push(t, streamed);
  decoder.finish(streamed);
  EXPECT_EQ(streamed, text);
}

TEST(ByteTokenizer, EndOfTextIsSpecial) {
  const auto tokenizer = Tokenizer::bytes();
  EXPECT_EQ(*tokenizer->token_id("<|endoftext|>"), 256);
  EXPECT_TRUE(tokenizer->is_special(256));
  EXPECT_FALSE(tokenizer->is_special('a'));
}

}  // namespace
}  // namespace tandem
