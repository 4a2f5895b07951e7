#include "server/openai/constraint.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/openai/request.h"

namespace tandem::openai {
namespace {

using testing::HasSubstr;

// The constraint of a request with these members, in text form; or the wrong fields.
std::string constraint_of(const std::string& members, FieldNames* names = nullptr) {
  const std::string body = absl::StrCat("{", members, "}");
  Violations wrong;
  v1::GenerateRequest out;
  Fields in(body, "", &wrong);
  FieldNames unused;
  constraint_from(&in, &out, names == nullptr ? &unused : names, &wrong);
  in.end();
  if (!wrong.status().ok()) return std::string(wrong.status().message());
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  EXPECT_TRUE(printer.PrintToString(out, &text));
  return text;
}

TEST(OpenAiConstraint, ResponseFormats) {
  EXPECT_EQ(constraint_of(R"("response_format":{"type":"text"})"), "");
  EXPECT_EQ(constraint_of(R"("response_format":null)"), "");
  EXPECT_EQ(constraint_of(R"("response_format":{"type":"json_object"})"), "json_object { } ");
  EXPECT_EQ(constraint_of(R"("response_format":{"type":"json_object","schema":{"a":1}})"),
            "json_schema: \"{\\\"a\\\":1}\" ");
  EXPECT_EQ(constraint_of(R"("response_format":{"type":"json_schema","schema":{}})"),
            "json_schema: \"{}\" ");
  EXPECT_EQ(constraint_of(R"("response_format":{"type":"json_schema","json_schema":
                {"name":"n","description":"d","strict":false,"schema":{}}})"),
            "json_schema: \"{}\" ");
  EXPECT_EQ(constraint_of(R"("response_format":{"type":"structural_tag","triggers":["x"]})"),
            "structural_tag: "
            "\"{\\\"type\\\":\\\"structural_tag\\\",\\\"triggers\\\":[\\\"x\\\"]}\" ");
}

// Errors of compilation have the field of the API, and clients the name that they used.
TEST(OpenAiConstraint, RemembersTheNameThatTheClientUsed) {
  const auto name = [](const std::string& field, const std::string& members) {
    FieldNames names;
    constraint_of(members, &names);
    const absl::Status status = renamed(wrong_field(field, "x"), Kind::kCompletion, names);
    return std::string(status.message());
  };
  EXPECT_EQ(name("json_schema", R"("response_format":{"type":"json_schema","schema":{}})"),
            "response_format: x");
  EXPECT_EQ(name("json_object", R"("response_format":{"type":"json_object"})"),
            "response_format: x");
  EXPECT_EQ(name("structural_tag", R"("response_format":{"type":"structural_tag"})"),
            "response_format: x");
  EXPECT_EQ(name("json_schema", R"("structured_outputs":{"json":{}})"),
            "structured_outputs.json: x");
  EXPECT_EQ(name("json_object", R"("structured_outputs":{"json_object":true})"),
            "structured_outputs.json_object: x");
  EXPECT_EQ(name("regex", R"("structured_outputs":{"regex":"("})"), "structured_outputs.regex: x");
  EXPECT_EQ(name("choice", R"("guided_choice":[])"), "guided_choice: x");
  EXPECT_EQ(name("choice.texts[1]", R"("guided_choice":["a",""])"), "guided_choice.texts[1]: x");
  EXPECT_EQ(name("json_schema", R"("guided_json":{})"), "guided_json: x");
  EXPECT_EQ(name("grammar", R"("guided_grammar":"a")"), "guided_grammar: x");
  EXPECT_EQ(name("grammar", R"("grammar":"a")"), "grammar: x");
  EXPECT_EQ(name("json_schema", R"("json_schema":{})"), "json_schema: x");
  EXPECT_EQ(name("whitespace_pattern", R"("guided_json":{},"guided_whitespace_pattern":"("})"),
            "guided_whitespace_pattern: x");
  EXPECT_EQ(
      name("whitespace_pattern", R"("structured_outputs":{"json":{},"whitespace_pattern":"("})"),
      "structured_outputs.whitespace_pattern: x");
  EXPECT_EQ(name("regex", ""), "tandem.regex: x");
}

TEST(OpenAiConstraint, NamesOfOtherServers) {
  const auto vllm = [](const std::string& member) {
    return constraint_of(absl::StrCat("\"structured_outputs\":{", member, "}"));
  };
  EXPECT_EQ(vllm(R"("json":{})"), "json_schema: \"{}\" ");
  EXPECT_EQ(vllm(R"("json":"{}","whitespace_pattern":" ")"),
            "json_schema: \"{}\" whitespace_pattern: \" \" ");
  EXPECT_EQ(vllm(R"("json_object":true)"), "json_object { } ");
  EXPECT_EQ(vllm(R"("json_object":false)"), "");
  EXPECT_EQ(vllm(R"("regex":"a")"), "regex: \"a\" ");
  EXPECT_EQ(vllm(R"("choice":["a","b"])"), "choice { texts: \"a\" texts: \"b\" } ");
  EXPECT_EQ(vllm(R"("grammar":"start: A")"), "grammar: \"start: A\" ");
  EXPECT_EQ(vllm(R"("structural_tag":"{}")"), "structural_tag: \"{}\" ");
  EXPECT_EQ(constraint_of(R"("guided_choice":["a"],"guided_decoding_backend":"x")"),
            "choice { texts: \"a\" } ");
  EXPECT_EQ(constraint_of(R"("guided_json":{},"guided_whitespace_pattern":" ")"),
            "json_schema: \"{}\" whitespace_pattern: \" \" ");
  EXPECT_EQ(constraint_of(R"("guided_regex":"a")"), "regex: \"a\" ");
  EXPECT_EQ(constraint_of(R"("guided_grammar":"a")"), "grammar: \"a\" ");
  EXPECT_EQ(constraint_of(R"("json_schema":{})"), "json_schema: \"{}\" ");
  EXPECT_EQ(constraint_of(R"("grammar":"root ::= \"a\"")"), "grammar: \"root ::= \\\"a\\\"\" ");
  EXPECT_EQ(constraint_of(R"("grammar":"")"), "") << "llama.cpp's default";
}

TEST(OpenAiConstraint, RefusesByName) {
  EXPECT_THAT(constraint_of(R"("response_format":{"type":"sound"})"),
              HasSubstr("response_format.type: another type; allowed: text, json_object"));
  EXPECT_THAT(constraint_of(R"("response_format":{"type":"json_schema"})"),
              HasSubstr("response_format.json_schema: none"));
  EXPECT_THAT(constraint_of(R"("response_format":{"type":"json_schema","json_schema":{"a":1}})"),
              HasSubstr("response_format.json_schema.a: unknown field"));
  EXPECT_THAT(constraint_of(R"("json_schema":123)"), HasSubstr("json_schema: a number"));
  EXPECT_THAT(constraint_of(R"("guided_choice":[1])"), HasSubstr("guided_choice: a number"));
  EXPECT_THAT(constraint_of(R"("structured_outputs":{"disable_any_whitespace":true})"),
              HasSubstr("structured_outputs.disable_any_whitespace: unknown field"));
  EXPECT_THAT(constraint_of(R"("json_schema":{},"guided_regex":"x")"),
              HasSubstr("json_schema: set; allowed: unset with guided_regex"));
  EXPECT_THAT(constraint_of(R"("response_format":{"type":"json_object"},"grammar":"x")"),
              HasSubstr("grammar: set; allowed: unset with response_format"));
}

}  // namespace
}  // namespace tandem::openai
