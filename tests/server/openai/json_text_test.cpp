#include "server/openai/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tandem::openai {
namespace {

using testing::ElementsAre;

TEST(JsonText, SplitsObjectsAndArrays) {
  const std::string object =
      " { \"a\" : 1.50 , \"b\\u00e9\":{\"x\":[1,{\"y\":\"]}\\\"\"}]},\"c\":[ ], \"d\":null} ";
  ASSERT_TRUE(is_json(object));
  const auto members = members_of(object);
  ASSERT_EQ(members.size(), 4U);
  EXPECT_EQ(members[0].name, "a");
  EXPECT_EQ(members[0].value, "1.50") << "as it was written";
  EXPECT_EQ(members[1].name, "b\xC3\xA9");
  EXPECT_EQ(members[1].value, "{\"x\":[1,{\"y\":\"]}\\\"\"}]}");
  EXPECT_EQ(members[2].value, "[ ]");
  EXPECT_EQ(kind_of(members[3].value), JsonKind::kNull);
  EXPECT_THAT(elements_of("[1, [2,3] ,\"a,b\",true]"),
              ElementsAre("1", "[2,3]", "\"a,b\"", "true"));
  EXPECT_THAT(elements_of("[ ]"), ElementsAre());
  EXPECT_TRUE(members_of("{}").empty());
}

TEST(JsonText, DistinguishesKinds) {
  EXPECT_EQ(kind_of(" -1"), JsonKind::kNumber);
  EXPECT_EQ(kind_of("false"), JsonKind::kBool);
  EXPECT_EQ(kind_of("\"\""), JsonKind::kString);
  EXPECT_EQ(kind_of("[]"), JsonKind::kArray);
  EXPECT_EQ(kind_of("\n{}"), JsonKind::kObject);
}

TEST(JsonText, ChecksAndUnescapes) {
  EXPECT_EQ(string_of("\"a\\n\\u00e9\\ud83d\\ude00\""), "a\n\xC3\xA9\xF0\x9F\x98\x80");
  for (const char* bad : {"", "{", "{\"a\":1}x", "{'a':1}", "[1,]", "\"\\ud800\"", "\"\xFF\"",
                          "NaN", "01", "{\"a\" 1}"}) {
    EXPECT_FALSE(is_json(bad)) << bad;
  }
}

// A deep text costs no stack, and a long one only the list of its parts.
TEST(JsonText, AcceptsDepthAndLength) {
  const size_t depth = 1 << 20;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  ASSERT_TRUE(is_json(deep));
  EXPECT_THAT(elements_of(deep), ElementsAre(deep.substr(1, deep.size() - 2)));
}

TEST(JsonText, ObjectsAreCheckedAgainstTheLimits) {
  const auto list = [](const std::string& part, size_t count) {
    std::string out = part;
    for (size_t i = 1; i < count; ++i) out += "," + part;
    return out;
  };
  const auto error = [](const std::string& text) {
    return std::string(check_json_object(text).message());
  };
  EXPECT_EQ(error("{\"a\":[{\"b\":1}]}"), "");
  for (const char* bad : {"", "1", "[]", "{\"a\":1", "{\"a\":1}x", "{\"a\":\"\\ud800\"}"}) {
    EXPECT_EQ(error(bad),
              absl::StrCat("body: ", std::string(bad).size(),
                           " bytes that are not a JSON object; allowed: one JSON object"));
  }
  EXPECT_EQ(error("{" + list("\"\":0", kMaxTopMembers) + "}"), "");
  EXPECT_EQ(error("{" + list("\"\":0", kMaxTopMembers + 1) + "}"),
            "body: an object of more members; allowed: at most 256");
  EXPECT_EQ(error("{\"logit_bias\":{" + list("\"1\":0", kMaxMembers) + "}}"), "");
  EXPECT_EQ(error("{\"logit_bias\":{" + list("\"1\":0", kMaxMembers + 1) + "}}"),
            "logit_bias: an object of more members; allowed: at most 4096");
  EXPECT_EQ(error("{\"messages\":[" + list("{}", kMaxNested) + "]}"), "");
  EXPECT_EQ(error("{\"messages\":[" + list("{}", kMaxNested + 1) + "]}"),
            "messages: an array of more objects and arrays; allowed: at most 16384");
  EXPECT_EQ(error("{\"prompt\":[" + list("1", kMaxElements + 1) + "]}"),
            "prompt: an array of more elements; allowed: at most 1048576");
  const auto deep = [](size_t n) {
    return "{\"X y\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  EXPECT_EQ(error(deep(kMaxJsonDepth - 1)), "");
  EXPECT_EQ(error(deep(1 << 20)), "\"X y\": more levels; allowed: at most 128");
}

TEST(JsonText, ParseMemoryBoundsTheLists) {
  const std::string numbers = "[1,2,3,4,5,6,7,8]";
  EXPECT_GE(parse_memory(numbers), static_cast<int64_t>(8 * sizeof(absl::string_view)));
  const std::string text = "\"" + std::string(1000, 'x') + "\"";
  EXPECT_EQ(parse_memory(text) - parse_memory(""), 2 * 1002) << "a text is copied, not split";
}

TEST(JsonText, StringsAreJsonAgain) {
  EXPECT_EQ(json_string("a\"\n\xC3\xA9"), "\"a\\\"\\n\xC3\xA9\"");
  EXPECT_TRUE(is_json(json_string("\xFF\x01")));
}

}  // namespace
}  // namespace tandem::openai
