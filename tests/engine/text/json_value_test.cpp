#include "engine/text/json_value.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace tandem {
namespace {

// What the reader says of a whole text: its output, "more" or "invalid at N".
std::string json_verdict(const std::string& text) {
  JsonValue value;
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (value.push(text[i], &out)) {
      case JsonValue::Result::kMore:
        continue;
      case JsonValue::Result::kDone:
        return i + 1 == text.size() ? out : "done at " + std::to_string(i);
      case JsonValue::Result::kEnded:
        return out + " ended before " + std::to_string(i);
      case JsonValue::Result::kInvalid:
        return "invalid at " + std::to_string(i);
    }
  }
  return "more";
}

TEST(JsonValue, ReadsValidValues) {
  for (const char* text :
       {"{}", "[]", "\"\"", "true", "false", "null", R"({"a":1})", R"( [1, -2.5e+10 , 0.0 ,"x"])",
        R"({"a":{"b":[[],{}]},"c":"A\n\"\\/\b"})", R"([true,false,null,-0,1E5])",
        "{ \"\xC3\xA9\" : \"\xE6\xBC\xA2\" }"}) {
    EXPECT_EQ(json_verdict(text), text);
  }
}

TEST(JsonValue, ANumberEndsBeforeTheNextByte) {
  EXPECT_EQ(json_verdict("12,"), "12 ended before 2");
  EXPECT_EQ(json_verdict("-1.5e3}"), "-1.5e3 ended before 6");
  EXPECT_EQ(json_verdict("0 "), "0 ended before 1");
}

TEST(JsonValue, RefusesAnythingElse) {
  for (const auto& [text, at] : std::vector<std::pair<std::string, int>>{
           {"{1", 1},      {"{\"a\" 1", 5},  {"[1,]", 3}, {"{\"a\":1,}", 7}, {"[01", 2},
           {"-x", 1},      {"[1.]", 3},      {"[1e]", 3}, {"tru3", 3},       {"[1 2", 3},
           {"\"\\x\"", 2}, {"\"\\u00g0", 5}, {"[}", 1},   {"{]", 1},         {"{\"a\":]", 5},
           {"'a'", 0},     {"[+1", 1},       {"[.5", 1},  {"x", 0},          {"{\"a\":1]", 6}}) {
    EXPECT_EQ(json_verdict(text), "invalid at " + std::to_string(at)) << text;
  }
  EXPECT_EQ(json_verdict(std::string(JsonValue::kMaxDepth, '[')), "more");
  EXPECT_EQ(json_verdict(std::string(JsonValue::kMaxDepth + 1, '[')),
            "invalid at " + std::to_string(JsonValue::kMaxDepth));
}

TEST(JsonValue, EscapesControlCharactersOfStrings) {
  EXPECT_EQ(json_verdict("\"a\nb\tc\rd\x01\""), R"("a\nb\tc\rd\u0001")");
  EXPECT_EQ(json_verdict("{\"a\":\n\"\n\"}"), "{\"a\":\n\"\\n\"}") << "not outside of them";
}

// Random edits of valid JSON: the verdict is that of a complete parser.
TEST(JsonValue, AgreesWithAParser) {
  const std::string seedling = R"({"a":[1,-2.5e+1,"x\n",{"b":null}],"c":true,"d":"\u00e9"})";
  const std::string alphabet = R"({}[]",:\ 0123.eE+-truefalsn)";
  std::mt19937 random(7);
  int valid = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = seedling;
    for (unsigned edits = random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1);
      } else {
        text[at] = alphabet[random() % alphabet.size()];
      }
    }
    if (text.empty() || text[0] != '{') continue;
    const bool accepted = nlohmann::json::accept(text);
    EXPECT_EQ(json_verdict(text) == text, accepted) << text;
    valid += accepted ? 1 : 0;
  }
  EXPECT_GT(valid, 1000);
}

}  // namespace
}  // namespace tandem
