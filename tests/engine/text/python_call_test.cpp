#include "engine/text/python_call.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// "name arguments" of each call, joined by " | "; "none" if the code is anything else.
std::string python_verdict(const std::string& code) {
  const auto calls = parse_python_calls(code);
  if (!calls) return "none";
  std::string out;
  for (const PythonCall& call : *calls) {
    out += (out.empty() ? "" : " | ") + call.name + " " + call.arguments;
  }
  return out;
}

TEST(PythonCalls, ReadsNamedLiterals) {
  EXPECT_EQ(python_verdict("f()"), "f {}");
  EXPECT_EQ(python_verdict("f(city=\"Paris\", days=2)"), R"(f {"city":"Paris","days":2})");
  EXPECT_EQ(
      python_verdict("f(a = 'it\\'s', b=-1.5e3, c=True, d=None, e=[1, 'x',], f={'k': (1, 2)},)"),
      R"(f {"a":"it's","b":-1500.0,"c":true,"d":null,"e":[1,"x"],"f":{"k":[1,2]}})");
  EXPECT_EQ(python_verdict("f(s='a\\nb\\\\')"), R"(f {"s":"a\nb\\"})");
  EXPECT_EQ(python_verdict("f(s=\"\xC3\xA9\")"), "f {\"s\":\"\xC3\xA9\"}");
  EXPECT_EQ(python_verdict("f(\n  a=1,\n  b=2\n)"), R"(f {"a":1,"b":2})");
}

TEST(PythonCalls, ReadsSeveralCalls) {
  EXPECT_EQ(python_verdict("print(f(a=1))"), R"(f {"a":1})");
  EXPECT_EQ(python_verdict("[f(a=1), g()]"), R"(f {"a":1} | g {})");
  EXPECT_EQ(python_verdict("\nf(a=1)\ng(b=2)\n"), R"(f {"a":1} | g {"b":2})");
  EXPECT_EQ(python_verdict("f(a=1); api.g(b=2)"), R"(f {"a":1} | api.g {"b":2})");
}

TEST(PythonCalls, RefusesAnythingElse) {
  for (const char* code : {"",
                           "f",
                           "f(",
                           "f(1)",
                           "f(a=)",
                           "f(a=x)",
                           "f(a=1 b=2)",
                           "f(a=1, a=2)",
                           "x = f(a=1)",
                           "f(a=1) g(b=2)",
                           "f(a=g())",
                           "f(a='x)",
                           "f(a=1)+1",
                           "[f(a=1)",
                           "[]",
                           "f(a='\\x41')",
                           "f(a={1: 2})",
                           "import os",
                           "f(a=0x10)",
                           "print(print(f(a=1)))",
                           "f(a=1_0)"}) {
    EXPECT_EQ(python_verdict(code), "none") << code;
  }
  EXPECT_EQ(python_verdict("f(a=" + std::string(20, '[') + std::string(20, ']') + ")").substr(0, 2),
            "f ");
  EXPECT_EQ(python_verdict("f(a=" + std::string(100000, '[')), "none") << "the nesting is bounded";
}

}  // namespace
}  // namespace tandem
