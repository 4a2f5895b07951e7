#include "server/openai/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(JsonText, StringsAreJsonAgain) {
  EXPECT_EQ(json_string("a\"\n\xC3\xA9"), "\"a\\\"\\n\xC3\xA9\"");
  EXPECT_TRUE(is_json(json_string("\xFF\x01")));
}

}  // namespace
}  // namespace tandem::openai
