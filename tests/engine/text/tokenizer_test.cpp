// Tokenizer against Transformers: six vocabularies of different kinds, 500 hostile strings each.
#include "engine/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/text/utf8.h"
#include "tests/engine/text/test_data.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<Token>;

// A text of goldens.json; null: the text as given.
std::string text_or(const json& value, const std::string& given) {
  return value.is_null() ? given : value.get<std::string>();
}

class TokenizerGoldens : public ::testing::TestWithParam<std::string> {
 protected:
  TokenizerGoldens()
      : goldens_(test::read_json(test::data_path("tokenizers/" + GetParam() + "/goldens.json"))),
        texts_(test::read_json(test::data_path("tokenizers/texts.json"))),
        tokenizer_(test::golden_tokenizer(GetParam())) {}

  // Ids of golden text i without and with special tokens.
  Ids plain_ids(size_t i) const { return goldens_["texts"][i][0].get<Ids>(); }
  Ids all_ids(size_t i) const {
    const json& around = goldens_["texts"][i][1];
    if (around.size() != 2 || !around[0].is_array()) return around.get<Ids>();
    Ids ids = around[0].get<Ids>();
    for (const Token id : plain_ids(i)) ids.push_back(id);
    for (const Token id : around[1].get<Ids>()) ids.push_back(id);
    return ids;
  }

  json goldens_;
  std::vector<std::string> texts_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(TokenizerGoldens, EncodesAsTransformers) {
  ASSERT_EQ(texts_.size(), 500u);
  ASSERT_EQ(goldens_["texts"].size(), texts_.size());
  for (size_t i = 0; i < texts_.size(); i += test::kGoldenStep) {
    SCOPED_TRACE(testing::Message() << "text " << i << " " << json(texts_[i]).dump());
    const auto plain = tokenizer_->encode(texts_[i], false);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(*plain, plain_ids(i));
    const auto all = tokenizer_->encode(texts_[i], true);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(*all, all_ids(i));
    const json& split = goldens_["texts"][i][3];
    const auto as_text = tokenizer_->encode(texts_[i], false, SpecialText::kPlain);
    ASSERT_TRUE(as_text.ok()) << as_text.status();
    EXPECT_EQ(*as_text, split.is_null() ? plain_ids(i) : split.get<Ids>());
    EXPECT_EQ(*tokenizer_->encode(texts_[i], false, SpecialText::kParse), plain_ids(i));
  }
}

TEST_P(TokenizerGoldens, DecodesAsTransformers) {
  for (size_t i = 0; i < texts_.size(); i += test::kGoldenStep) {
    SCOPED_TRACE(testing::Message() << "text " << i << " " << json(texts_[i]).dump());
    const json& decoded = goldens_["texts"][i][2];
    EXPECT_EQ(*tokenizer_->decode(all_ids(i), false), text_or(decoded[0], texts_[i]));
    EXPECT_EQ(*tokenizer_->decode(all_ids(i), true), text_or(decoded[1], texts_[i]));
    EXPECT_EQ(*tokenizer_->decode(plain_ids(i), false), text_or(decoded[2], texts_[i]));
  }
}

// Exact also for a character that spans several tokens.
TEST_P(TokenizerGoldens, BytesOfTokensSpellTheText) {
  if (tokenizer_->pieces().kind() != PieceKind::kBytes) return;
  int split = 0;
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::string bytes;
    for (const Token id : plain_ids(i)) {
      bytes += tokenizer_->token_bytes(id);
      split += valid_utf8_prefix(tokenizer_->token_bytes(id)) == 0 ? 1 : 0;
    }
    EXPECT_EQ(bytes, *tokenizer_->decode(plain_ids(i), false)) << json(texts_[i]).dump();
  }
  EXPECT_GT(split, 100);
  EXPECT_EQ(tokenizer_->token_bytes(-1), "");
  EXPECT_EQ(tokenizer_->token_bytes(tokenizer_->vocab_size()), "");
}

TEST_P(TokenizerGoldens, DecodesRandomIdsAsTransformers) {
  ASSERT_GE(goldens_["ids"].size(), 100u);
  for (const json& sequence : goldens_["ids"]) {
    SCOPED_TRACE(sequence.dump());
    const Ids ids = sequence[0].get<Ids>();
    EXPECT_EQ(*tokenizer_->decode(ids, false), sequence[1].get<std::string>());
    EXPECT_EQ(*tokenizer_->decode(ids, true), sequence[2].get<std::string>());
  }
}

TEST_P(TokenizerGoldens, KnowsItsVocabulary) {
  EXPECT_EQ(tokenizer_->vocab_size(), goldens_["size"].get<int>());
  const Ids special = goldens_["special_ids"].get<Ids>();
  for (const Token id : special) EXPECT_TRUE(tokenizer_->is_special(id)) << id;
  int count = 0;
  for (Token id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string text = tokenizer_->token_text(id);
    ASSERT_EQ(tokenizer_->token_id(text), id) << text;
    count += tokenizer_->is_special(id) ? 1 : 0;
  }
  EXPECT_GE(count, static_cast<int>(special.size()));
  EXPECT_LT(count, 10);
  EXPECT_FALSE(tokenizer_->token_id("no such token").has_value());
}

TEST_P(TokenizerGoldens, RefusesIdsOutsideTheVocabulary) {
  const int size = tokenizer_->vocab_size();
  for (const Token bad : {-1, size, INT32_MAX, INT32_MIN}) {
    const auto text = tokenizer_->decode(Ids{0, bad}, false);
    ASSERT_TRUE(absl::IsInvalidArgument(text.status())) << bad;
    EXPECT_THAT(text.status().message(), HasSubstr("token id " + std::to_string(bad)));
    EXPECT_THAT(text.status().message(), HasSubstr("allowed 0 to " + std::to_string(size - 1)));
    EXPECT_EQ(tokenizer_->token_text(bad), "");
    EXPECT_FALSE(tokenizer_->is_special(bad));
  }
  EXPECT_TRUE(tokenizer_->decode(Ids{size - 1}, false).ok());
  EXPECT_EQ(*tokenizer_->decode(Ids{}, false), "");
}

TEST_P(TokenizerGoldens, RefusesInvalidUtf8) {
  const std::pair<std::string, int> cases[] = {
      {"\xff", 0},          {"ab\x80", 2},         {"\xc3", 0},     {"x\xe4\xbd", 1},
      {"\xed\xa0\x80", 0},  {"\xed\xb0\x80ok", 0}, {"\xc0\x80", 0}, {"\xf4\x90\x80\x80", 0},
      {"é\xf0\x9f\x98", 2}, {"日\xe0\x80\xaf", 3}, {"\xfe\xff", 0},
  };
  for (const auto& [text, offset] : cases) {
    const auto ids = tokenizer_->encode(text, true);
    ASSERT_TRUE(absl::IsInvalidArgument(ids.status())) << offset;
    EXPECT_THAT(ids.status().message(),
                HasSubstr("invalid UTF-8 at byte " + std::to_string(offset)));
  }
}

TEST_P(TokenizerGoldens, ManyThreadsAgree) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([this, t, &wrong] {
      for (size_t i = t; i < texts_.size(); i += 3) {
        const auto ids = tokenizer_->encode(texts_[i], true);
        const bool same =
            ids.ok() && *ids == all_ids(i) &&
            *tokenizer_->decode(*ids, true) == text_or(goldens_["texts"][i][2][1], texts_[i]);
        wrong[t] += same ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGoldens, ::testing::ValuesIn(test::tokenizer_names()),
                         [](const auto& name) { return name.param; });

TEST(TokenizerLoad, TakesTokensFromTheConfiguration) {
  // tokenizer.json of llama2 has neither; Transformers adds them in this order.
  const auto tokenizer = test::golden_tokenizer("llama2");
  const json file = test::read_json(test::data_path("tokenizers/llama2/tokenizer.json"));
  const int base = static_cast<int>(file["model"]["vocab"].size());
  EXPECT_EQ(tokenizer->token_id("<pad>"), base);
  EXPECT_EQ(tokenizer->token_id("<extra>"), base + 1);
  EXPECT_TRUE(tokenizer->is_special(base));
  EXPECT_EQ(*tokenizer->decode(Ids{base}, true), "");
}

TEST(TokenizerLoad, SplitSpecialTokensIsConfigurable) {
  test::TemporaryModel model;
  const std::string source = test::data_path("tokenizers/llama3/");
  json config = test::read_json(source + "tokenizer_config.json");
  config["split_special_tokens"] = true;
  model.write("tokenizer.json", test::read_text(source + "tokenizer.json"))
      .write("tokenizer_config.json", config.dump());
  const auto tokenizer = Tokenizer::load(model.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Token eot = *(*tokenizer)->token_id("<|eot_id|>");
  EXPECT_EQ(*(*tokenizer)->encode("<|eot_id|>", false, SpecialText::kParse), Ids{eot});
  EXPECT_GT((*tokenizer)->encode("<|eot_id|>", false)->size(), 1u);
}

TEST(TokenizerLoad, IgnoresTruncationAndPadding) {
  test::TemporaryModel model;
  json file = test::read_json(test::data_path("tokenizers/gpt2/tokenizer.json"));
  file["truncation"] = {
      {"direction", "Right"}, {"max_length", 3}, {"strategy", "LongestFirst"}, {"stride", 0}};
  file["padding"] = {{"strategy", {{"Fixed", 50}}},
                     {"direction", "Right"},
                     {"pad_id", 0},
                     {"pad_type_id", 0},
                     {"pad_token", "x"},
                     {"pad_to_multiple_of", nullptr}};
  model.write("tokenizer.json", file.dump());
  const auto tokenizer = Tokenizer::load(model.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "one two three four five six seven";
  EXPECT_EQ(*(*tokenizer)->encode(text, true), *test::golden_tokenizer("gpt2")->encode(text, true));
}

}  // namespace
}  // namespace tandem
