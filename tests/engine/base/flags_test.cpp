#include "engine/base/flags.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

struct Parsed {
  std::optional<std::string> text;
  std::vector<std::string> texts;
  std::optional<double> number;
  bool on = false;
  absl::StatusOr<std::vector<std::string>> rest = absl::UnknownError("not parsed");
};

Parsed parse(const std::vector<std::string>& args) {
  Parsed p;
  Flags flags;
  flags.text("text", "T", "a text", &p.text);
  flags.texts("many", "T", "texts", &p.texts);
  flags.number("number", "N", "a number", -1, 10, &p.number);
  flags.toggle("on", "a switch", &p.on);
  p.rest = flags.parse(args);
  return p;
}

TEST(Flags, TakesValuesInBothForms) {
  const Parsed p = parse({"--text", "a", "--number=2.5", "--many=x=y", "--many", "z"});
  ASSERT_TRUE(p.rest.ok());
  EXPECT_EQ(p.text, "a");
  EXPECT_EQ(p.number, 2.5);
  EXPECT_EQ(p.texts, (std::vector<std::string>{"x=y", "z"}));
}

TEST(Flags, AValueMayLookLikeAFlag) {
  const Parsed p = parse({"--text", "--on"});
  EXPECT_EQ(p.text, "--on");
  EXPECT_FALSE(p.on);
}

TEST(Flags, SwitchesTakeNoFollowingValue) {
  const Parsed p = parse({"--on", "left"});
  EXPECT_TRUE(p.on);
  EXPECT_EQ(*p.rest, std::vector<std::string>{"left"});
  EXPECT_FALSE(parse({"--on", "--on=false"}).on);
}

TEST(Flags, KeepsWhatIsNoFlag) {
  EXPECT_EQ(*parse({"a", "-", "--", "--text"}).rest,
            (std::vector<std::string>{"a", "-", "--text"}));
}

TEST(Flags, ErrorsNameFlagValueAndAllowed) {
  const struct {
    std::vector<std::string> args;
    const char* message;
  } cases[] = {
      {{"--nope"}, "--nope: no such flag; see --help"},
      {{"--text"}, "--text: needs a value: T"},
      {{"--number=11"}, "--number: 11; allowed: a number in [-1, 10]"},
      {{"--number=nan"}, "--number: nan; allowed: a number in [-1, 10]"},
      {{"--number=x"}, "--number: x; allowed: a number in [-1, 10]"},
      {{"--on=maybe"}, "--on: maybe; allowed: true, false"},
  };
  for (const auto& c : cases) {
    const Parsed p = parse(c.args);
    EXPECT_EQ(p.rest.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(p.rest.status().message()), c.message);
  }
}

TEST(Flags, HelpListsEveryFlagUnderItsSection) {
  Flags flags;
  std::optional<std::string> text;
  flags.section("Things");
  flags.text("a-rather-long-name", "WITH-A-VALUE", "one\ntwo", &text);
  EXPECT_EQ(flags.help(),
            "\nThings:\n"
            "  --a-rather-long-name WITH-A-VALUE\n"
            "                              one\n"
            "                              two\n");
}

}  // namespace
}  // namespace tandem
