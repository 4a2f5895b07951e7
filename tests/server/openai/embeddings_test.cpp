#include "server/openai/embeddings.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/violations.h"

namespace tandem::openai {
namespace {

using google::protobuf::TextFormat;
using google::protobuf::util::MessageDifferencer;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

template <class Message>
void expect_message(const Message& is, const std::string& text) {
  Message should;
  ASSERT_TRUE(TextFormat::ParseFromString(text, &should)) << text;
  EXPECT_TRUE(MessageDifferencer::Equals(is, should)) << is.DebugString();
}

template <class Result>
std::string refusal(const Result& result) {
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), Not(HasSubstr("SECRET")));
  return std::string(result.status().message());
}

v1::EmbedRequest good(const std::string& body) {
  const auto request = embeddings_from(body);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? request->message : v1::EmbedRequest();
}

TEST(Embeddings, FormsOfInput) {
  expect_message(good(R"({"model":"m","input":"a"})"), R"(model: "m" inputs { text: "a" })");
  expect_message(good(R"({"input":["a","b"]})"), R"(inputs { text: "a" } inputs { text: "b" })");
  expect_message(good(R"({"input":[1,2]})"), "inputs { token_ids { ids: [1, 2] } }");
  expect_message(good(R"({"input":[[1],[2,3],"c"]})"),
                 R"(inputs { token_ids { ids: 1 } } inputs { token_ids { ids: [2, 3] } }
                    inputs { text: "c" })");
  for (const char* wrong :
       {R"({"model":"SECRET"})", R"({"input":3})", R"({"input":["SECRET",3]})",
        R"({"input":[1,"SECRET"]})", R"({"input":[[[1]]]})", R"({"input":[1.5]})"}) {
    EXPECT_THAT(refusal(embeddings_from(wrong)), HasSubstr("input")) << wrong;
  }
  EXPECT_THAT(refusal(embeddings_from("[]")), HasSubstr("body"));
}

TEST(Embeddings, Fields) {
  const auto request = embeddings_from(
      R"({"input":"a","encoding_format":"base64","dimensions":8,"normalize":false,"user":"u",
          "add_special_tokens":false,"prefix":"p","prompt_name":"n","priority":-1})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->base64);
  expect_message(request->message,
                 R"(inputs { text: "a" } prefix: "p" prompt_name: "n" add_special_tokens: false
                    dimensions: 8 normalize: false priority: -1)");
  EXPECT_FALSE(embeddings_from(R"({"input":"a","encoding_format":"float"})")->base64);
  for (const char* field : {"encoding_format", "truncate_prompt_tokens", "surprise"}) {
    const std::string body = std::string(R"({"input":"a",")") + field + R"(":"x"})";
    EXPECT_THAT(refusal(embeddings_from(body)), HasSubstr(field));
  }
}

TEST(Embeddings, AnswerInNumbersAndBase64) {
  v1::EmbedResponse response;
  response.add_embeddings()->add_values(0.1F);
  response.mutable_embeddings(0)->add_values(-3);
  response.add_embeddings();
  response.mutable_usage()->set_prompt_tokens(7);
  const json numbers = json::parse(embeddings_json(response, "m", false));
  EXPECT_EQ(numbers["object"], "list");
  EXPECT_EQ(numbers["model"], "m");
  EXPECT_EQ(numbers["usage"], json::parse(R"({"prompt_tokens":7,"total_tokens":7})"));
  ASSERT_EQ(numbers["data"].size(), 2U);
  EXPECT_EQ(numbers["data"][1]["index"], 1);
  EXPECT_EQ(numbers["data"][0]["object"], "embedding");
  EXPECT_EQ(numbers["data"][0]["embedding"][0].get<float>(), 0.1F);
  EXPECT_EQ(numbers["data"][0]["embedding"][1].get<float>(), -3);
  const json base64 = json::parse(embeddings_json(response, "m", true));
  EXPECT_EQ(base64["data"][0]["embedding"], "zczMPQAAQMA=");
}

TEST(Rerank, FormsOfDocuments) {
  const auto request = rerank_from(
      R"({"model":"m","query":"q","documents":["a",{"text":"b"}],"top_n":1,"user":"u",
          "return_documents":true,"instruction":"i","priority":2,"truncation":false})");
  ASSERT_TRUE(request.ok()) << request.status();
  expect_message(*request,
                 R"(model: "m" query: "q" documents: ["a", "b"] instruction: "i" top_n: 1
                    return_documents: true priority: 2)");
  EXPECT_THAT(refusal(rerank_from(R"({"documents":["SECRET",3]})")), HasSubstr("documents[1]"));
  EXPECT_THAT(refusal(rerank_from(R"({"documents":[{"title":"SECRET"}]})")),
              HasSubstr("documents[0].title"));
  for (const char* field : {"max_tokens_per_doc", "rank_fields", "surprise"}) {
    EXPECT_THAT(refusal(rerank_from(std::string(R"({"query":"q",")") + field + R"(":1})")),
                HasSubstr(field));
  }
}

TEST(Rerank, Answer) {
  v1::RerankResponse response;
  response.set_request_id("r");
  v1::RerankResult& result = *response.add_results();
  result.set_index(3);
  result.set_relevance_score(0.5);
  result.set_document("d");
  response.mutable_usage()->set_prompt_tokens(9);
  const json with = json::parse(rerank_json(response, "m", true));
  EXPECT_EQ(with, json::parse(R"({"id":"r","model":"m","usage":{"prompt_tokens":9,
      "total_tokens":9},"results":[{"index":3,"relevance_score":0.5,"document":{"text":"d"}}]})"));
  EXPECT_FALSE(json::parse(rerank_json(response, "m", false))["results"][0].contains("document"));
}

}  // namespace
}  // namespace tandem::openai
