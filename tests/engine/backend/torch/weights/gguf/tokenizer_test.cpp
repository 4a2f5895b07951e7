#include "engine/backend/torch/weights/gguf/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/engine/backend/torch/weights/gguf/builder.h"

namespace tandem {
namespace {

using nlohmann::json;
using test::GgufBuilder;
using test::tiny_gguf;
using Texts = std::vector<std::string>;

absl::StatusOr<GgufTokenizer> read(const GgufBuilder& b) {
  const std::string file = b.file();
  const auto parsed = parse_gguf(std::as_bytes(std::span(file)), "f");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return gguf_tokenizer(*parsed, "f");
}
json tokenizer_of(const GgufBuilder& b) {
  const auto t = read(b);
  EXPECT_TRUE(t.ok()) << t.status();
  return t.ok() ? json::parse(t->tokenizer_json) : json();
}
json config_of(const GgufBuilder& b) {
  const auto t = read(b);
  EXPECT_TRUE(t.ok()) << t.status();
  return t.ok() ? json::parse(t->tokenizer_config_json) : json();
}
std::string error(const GgufBuilder& b) { return std::string(read(b).status().message()); }

TEST(GgufTokenizer, ByteLevel) {
  const json t = tokenizer_of(tiny_gguf());
  EXPECT_EQ(t["model"]["vocab"]["ab"], 3);
  EXPECT_FALSE(t["model"]["vocab"].contains("u"));  // unused
  EXPECT_EQ(t["model"]["merges"], json::parse(R"([["a","b"]])"));
  EXPECT_EQ(t["model"]["ignore_merges"], false);
  EXPECT_EQ(t["pre_tokenizer"]["type"], "ByteLevel");
  EXPECT_FALSE(t.contains("normalizer"));
  EXPECT_TRUE(t["post_processor"].is_null());
  ASSERT_EQ(t["added_tokens"].size(), 3u);
  EXPECT_EQ(t["added_tokens"][1]["content"], "<|im_end|>");
  EXPECT_EQ(t["added_tokens"][1]["special"], true);
  EXPECT_EQ(t["added_tokens"][2]["content"], "<x>");
  EXPECT_EQ(t["added_tokens"][2]["special"], false);
}

TEST(GgufTokenizer, PreTokenizers) {
  const auto pre = [](const char* name) {
    return tokenizer_of(
        tiny_gguf().set("tokenizer.ggml.pre", name).set("tokenizer.ggml.bos_token_id", 1u));
  };
  const json qwen = pre("qwen2");
  EXPECT_EQ(qwen["normalizer"]["type"], "NFC");
  EXPECT_EQ(qwen["pre_tokenizer"]["pretokenizers"][1]["use_regex"], false);
  const json llama = pre("llama-bpe");
  EXPECT_EQ(llama["model"]["ignore_merges"], true);
  EXPECT_EQ(llama["post_processor"]["single"][0]["SpecialToken"]["id"], "a");
  EXPECT_EQ(llama["post_processor"]["special_tokens"]["a"]["ids"], json::array({1}));
  EXPECT_EQ(pre("smollm")["pre_tokenizer"]["pretokenizers"][0]["individual_digits"], true);
  EXPECT_EQ(pre("falcon")["pre_tokenizer"]["pretokenizers"].size(), 4u);
  EXPECT_THAT(error(tiny_gguf().set("tokenizer.ggml.pre", "mpt")),
              testing::StartsWith("f: tokenizer.ggml.pre: \"mpt\"; allowed: qwen2, "));
}

GgufBuilder sentencepiece(const std::string& arch = "llama") {
  GgufBuilder b = tiny_gguf(arch);
  b.set("tokenizer.ggml.model", "llama").erase("tokenizer.ggml.pre").erase("tokenizer.ggml.merges");
  b.set("tokenizer.ggml.tokens", Texts{"<unk>", "<s>", "<0x41>", "a", "b", "ab", "aba", "  "});
  b.set("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 6, 1, 1, 1, 1, 1});
  b.set("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -5, -6, -2, -1, -9});
  b.set("tokenizer.ggml.unknown_token_id", 0u).set("tokenizer.ggml.bos_token_id", 1u);
  return b;
}

TEST(GgufTokenizer, SentencePieceMergesByScore) {
  const json t = tokenizer_of(sentencepiece());
  EXPECT_EQ(t["model"]["merges"], json::parse(R"([["ab","a"],["a","b"]])"));
  EXPECT_EQ(t["model"]["byte_fallback"], true);
  EXPECT_EQ(t["model"]["unk_token"], "<unk>");
  EXPECT_EQ(t["normalizer"]["normalizers"][0]["prepend"], "\u2581");
  EXPECT_EQ(t["decoder"]["decoders"].size(), 4u);
  EXPECT_EQ(t["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
  const json plain = tokenizer_of(sentencepiece()
                                      .set("tokenizer.ggml.add_space_prefix", false)
                                      .set("tokenizer.ggml.add_bos_token", false));
  EXPECT_EQ(plain["normalizer"]["normalizers"].size(), 1u);
  EXPECT_TRUE(plain["post_processor"].is_null());
}

TEST(GgufTokenizer, GemmasMergesByOrderAndSpaces) {
  const json t = tokenizer_of(sentencepiece("gemma3"));
  EXPECT_EQ(t["model"]["merges"], json::parse(R"([["a","b"],["ab","a"]])"));
  EXPECT_EQ(t["model"]["vocab"]["\u2581\u2581"], 7);
}

TEST(GgufTokenizer, SpecialTokensAndTemplates) {
  const json config = config_of(tiny_gguf()
                                    .set("tokenizer.chat_template", "one")
                                    .set("tokenizer.chat_template.tool_use", "two")
                                    .set("tokenizer.ggml.padding_token_id", 5u));
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["pad_token"], "<|im_end|>");
  ASSERT_EQ(config["chat_template"].size(), 2u);
  EXPECT_EQ(config["chat_template"][1]["name"], "tool_use");
  EXPECT_EQ(config["chat_template"][1]["template"], "two");
  EXPECT_FALSE(config_of(tiny_gguf()).contains("chat_template"));
}

TEST(GgufTokenizer, TextsAreEscaped) {
  const Texts tokens{"\"", "\\", std::string("\0", 1), "\n", "\x1f", "\u00e9", "\x7f", "x"};
  const json t = tokenizer_of(tiny_gguf()
                                  .set("tokenizer.ggml.tokens", tokens)
                                  .set("tokenizer.ggml.merges", Texts{})
                                  .erase("tokenizer.ggml.token_type"));
  for (size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(t["model"]["vocab"][tokens[i]], i);
}

TEST(GgufTokenizer, Errors) {
  const Texts twice{"a", "a", "c", "d", "e", "f", "g", "h"};
  const struct {
    GgufBuilder file;
    std::string message;
  } cases[] = {
      {tiny_gguf().set("tokenizer.ggml.model", "bert"),
       "f: tokenizer.ggml.model: \"bert\"; allowed: gpt2, llama, t5"},
      {tiny_gguf().erase("tokenizer.ggml.tokens"),
       "f: tokenizer.ggml.tokens: missing; allowed: a list of tokens"},
      {tiny_gguf().set("tokenizer.ggml.token_type", std::vector<int32_t>{1}),
       "f: number of tokenizer.ggml.token_type: 1; allowed: 8, the number of tokens"},
      {tiny_gguf().set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 1, 1, 1, 1, 7}),
       "f: tokenizer.ggml.token_type[7]: 7; allowed: 1 to 6"},
      {tiny_gguf().set("tokenizer.ggml.tokens", twice).set("tokenizer.ggml.merges", Texts{}),
       "f: tokenizer.ggml.tokens[1]: \"a\"; allowed: a text other than that of token 0"},
      {tiny_gguf().set("tokenizer.ggml.merges", Texts{"a b", "b a"}),
       "f: tokenizer.ggml.merges[1]: \"b a\"; allowed: two tokens separated by a space, whose "
       "concatenation is a token"},
      {tiny_gguf().set("tokenizer.ggml.merges", Texts{"ab"}),
       "f: tokenizer.ggml.merges[0]: \"ab\"; allowed: two tokens separated by a space, whose "
       "concatenation is a token"},
      {tiny_gguf().erase("tokenizer.ggml.merges"),
       "f: tokenizer.ggml.merges: missing; allowed: the merges of a byte-level vocabulary"},
      {tiny_gguf().set("tokenizer.ggml.add_bos_token", true),
       "f: tokenizer.ggml.bos_token_id: missing; allowed: a token to add"},
      {tiny_gguf().set("tokenizer.ggml.padding_token_id", 8u),
       "f: tokenizer.ggml.padding_token_id: 8; allowed: integers from 0 to 7"},
      {tiny_gguf().set("tokenizer.chat_template", 1u),
       "f: tokenizer.chat_template: a value of type u32; allowed: strings"},
      {sentencepiece().set("tokenizer.ggml.scores", std::vector<float>{0}),
       "f: number of tokenizer.ggml.scores: 1; allowed: 8, the number of tokens"},
      {sentencepiece().set("tokenizer.ggml.token_type",
                           std::vector<int32_t>{2, 3, 6, 6, 1, 1, 1, 1}),
       "f: tokenizer.ggml.tokens[3]: \"a\"; allowed: <0x00> to <0xFF> for a token of type 6"},
  };
  for (const auto& c : cases) EXPECT_EQ(error(c.file), c.message);
}

}  // namespace
}  // namespace tandem
