#include "server/openai/tokens.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem::openai {
namespace {

using google::protobuf::TextFormat;
using google::protobuf::util::MessageDifferencer;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

template <class Message>
void expect_message(const absl::StatusOr<Message>& is, const std::string& text) {
  ASSERT_TRUE(is.ok()) << is.status();
  Message should;
  ASSERT_TRUE(TextFormat::ParseFromString(text, &should)) << text;
  EXPECT_TRUE(MessageDifferencer::Equals(*is, should)) << is->DebugString();
}

template <class Result>
std::string refusal(const Result& result) {
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), Not(HasSubstr("SECRET")));
  return std::string(result.status().message());
}

TEST(Tokens, TextsAndChatsAreTokenized) {
  expect_message(tokenize_from(R"({"model":"m","prompt":"p","add_special_tokens":false,
                                   "return_token_strs":true})"),
                 R"(model: "m" text: "p" add_special_tokens: false return_token_texts: true)");
  expect_message(tokenize_from(R"({"model":"m","messages":[{"role":"user","content":"c"}],
                                   "add_generation_prompt":false})"),
                 R"(model: "m" return_token_texts: false chat {
                    messages { role: "user" content: "c" } add_generation_prompt: false })");
  expect_message(tokenize_from(R"({"content":"p"})"),
                 R"(text: "p" add_special_tokens: false return_token_texts: false)");
  expect_message(tokenize_from(R"({"content":"p","add_special":true})"),
                 R"(text: "p" add_special_tokens: true return_token_texts: false)");
  EXPECT_THAT(refusal(tokenize_from(R"({"model":"m"})")), HasSubstr("prompt: none"));
  EXPECT_THAT(refusal(tokenize_from(R"({"prompt":"SECRET","content":"x"})")),
              HasSubstr("prompt: next to content"));
  EXPECT_THAT(refusal(tokenize_from(R"({"prompt":"SECRET","with_pieces":true})")),
              HasSubstr("with_pieces"));
  EXPECT_THAT(refusal(tokenize_from("[]")), HasSubstr("body"));
}

TEST(Tokens, IdsAreDetokenized) {
  expect_message(detokenize_from(R"({"model":"m","tokens":[1, 2]})"),
                 R"(model: "m" token_ids: 1 token_ids: 2 skip_special_tokens: false)");
  EXPECT_THAT(refusal(detokenize_from(R"({"tokens":[1,"SECRET"]})")),
              HasSubstr("tokens[1]: a string; allowed: a token id"));
}

TEST(Tokens, MessagesAreCounted) {
  expect_message(count_tokens_from(R"({"model":"m","system":"s",
                                       "messages":[{"role":"user","content":"c"}]})"),
                 R"(model: "m" chat { messages { role: "system" content: "s" }
                    messages { role: "user" content: "c" } })");
  EXPECT_THAT(refusal(count_tokens_from(R"({"model":"m","messages":[]})")), HasSubstr("messages"));
}

TEST(Tokens, AnswersHaveTheFormsOfTheirApis) {
  EXPECT_EQ(json::parse(tokenize_json({5, 6}, nullptr, 9)),
            json::parse(R"({"count":2,"max_model_len":9,"tokens":[5,6],"token_strs":null})"));
  const std::vector<std::string> texts = {"a", "\""};
  EXPECT_EQ(json::parse(tokenize_json({5, 6}, &texts, 9))["token_strs"], json(texts));
  EXPECT_EQ(json::parse(detokenize_json("a\n")),
            json::parse(R"({"prompt":"a\n","content":"a\n"})"));
  EXPECT_EQ(json::parse(count_tokens_json(3)), json::parse(R"({"input_tokens":3})"));
}

}  // namespace
}  // namespace tandem::openai
