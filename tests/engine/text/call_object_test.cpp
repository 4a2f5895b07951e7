#include "engine/text/call_object.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

// "name arguments" of a whole object, "more" or "invalid at N".
std::string call_verdict(const std::string& text, bool strict = false) {
  CallObject object(strict);
  std::string arguments;
  for (size_t i = 0; i < text.size(); ++i) {
    const CallObject::Result result = object.push(text[i]);
    if (result == CallObject::Result::kInvalid) return "invalid at " + std::to_string(i);
    arguments += object.take_arguments();
    if (result == CallObject::Result::kDone) {
      EXPECT_EQ(i + 1, text.size()) << text;
      EXPECT_TRUE(object.begun());
      return object.name() + " " + arguments;
    }
  }
  return "more";
}

TEST(CallObject, ReadsMembersInAnyOrder) {
  for (const bool strict : {false, true}) {
    EXPECT_EQ(call_verdict(R"({"name":"f","arguments":{"x": 1}})", strict), R"(f {"x": 1})");
    EXPECT_EQ(call_verdict(R"({ "parameters" : {"x":[1,{}]} , "name" : "f" })", strict),
              R"(f {"x":[1,{}]})");
    EXPECT_EQ(call_verdict(R"({"type":"function","id":"7","name":"f","parameters":{}})", strict),
              "f {}");
    EXPECT_EQ(
        call_verdict(R"({"type":"function","function":{"name":"f","arguments":{"a":2}}})", strict),
        R"(f {"a":2})");
    EXPECT_EQ(call_verdict(R"({"type":"function","function":"f","parameters":{"a":2}})", strict),
              R"(f {"a":2})");
    EXPECT_EQ(call_verdict(R"({"name":"a\u00e9","arguments":{}})", strict), "a\xC3\xA9 {}");
  }
}

TEST(CallObject, ArgumentsMayBeAStringOrNull) {
  EXPECT_EQ(call_verdict(R"({"name":"f","arguments":"{\"x\": 1}"})"), R"(f {"x": 1})");
  EXPECT_EQ(call_verdict(R"({"name":"f","arguments":""})"), "f {}");
  EXPECT_EQ(call_verdict(R"({"name":"f","arguments":null})"), "f {}");
  EXPECT_EQ(call_verdict(R"({"arguments":"{}","name":"f"})"), "f {}");
  EXPECT_EQ(call_verdict(R"({"name":"f","arguments":"[1]"})"), "invalid at 28");
  EXPECT_EQ(call_verdict(R"({"name":"f","arguments":"{} x"})"), "invalid at 29");
  EXPECT_EQ(call_verdict(R"({"name":"f","arguments":"{"})"), "invalid at 26");
}

TEST(CallObject, ArgumentsAreStreamed) {
  CallObject object(true);
  for (const char c : std::string(R"({"name":"f","arguments":{"x": "lo)")) {
    ASSERT_EQ(object.push(c), CallObject::Result::kMore);
  }
  EXPECT_TRUE(object.begun());
  EXPECT_EQ(object.take_arguments(), R"({"x": "lo)");
  EXPECT_EQ(object.push('n'), CallObject::Result::kMore);
  EXPECT_EQ(object.take_arguments(), "n");
}

TEST(CallObject, StrictObjectsHaveTheMembersOfACall) {
  EXPECT_EQ(call_verdict(R"({"name":"f","description":"d","arguments":{}})"), "f {}");
  EXPECT_EQ(call_verdict(R"({"name":"f","description":"d","arguments":{}})", true),
            "invalid at 26");
  EXPECT_EQ(call_verdict(R"({"name":"f"})"), "f {}");
  EXPECT_EQ(call_verdict(R"({"name":"f"})", true), "invalid at 11");
}

TEST(CallObject, RefusesAnythingElse) {
  for (const char* text :
       {"[", "{}", R"({"name":1)", R"({"name":""})", R"({"name":"f","name":"g")",
        R"({"name":"f","arguments":[)", R"({"name":"f","arguments":{},"parameters":{)",
        R"({"arguments":{}})", R"({"name":"f" "arguments")", R"({"name":"f",})",
        R"({"name":"f","function":{)"}) {
    const std::string is = call_verdict(text);
    EXPECT_EQ(is.substr(0, 7), "invalid") << text << ": " << is;
  }
}

}  // namespace
}  // namespace tandem
