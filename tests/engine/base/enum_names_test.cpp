#include "engine/base/enum_names.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

enum class Color { kRed, kGreen, kBlue };
enum class Wire { kUnset = 0, kR = 1, kG = 2, kB = 4 };

constexpr auto kNames =
    enum_names<Color>({{Color::kRed, "red"}, {Color::kGreen, "green"}, {Color::kBlue, "blue"}});
constexpr auto kWire = enum_table<Color, Wire>(
    {{Color::kRed, Wire::kR}, {Color::kGreen, Wire::kG}, {Color::kBlue, Wire::kB}});

static_assert(internal::is_enumerator<Color::kBlue>());
static_assert(!internal::is_enumerator<static_cast<Color>(3)>());
static_assert(kNames[Color::kGreen] == "green");
static_assert(kWire.size() == 3);

TEST(EnumNames, NamesAValue) {
  EXPECT_EQ(kNames[Color::kRed], "red");
  EXPECT_EQ(kNames[Color::kBlue], "blue");
}

TEST(EnumNames, FindsAValueByItsName) {
  EXPECT_EQ(kNames.find("green"), Color::kGreen);
  EXPECT_EQ(kNames.find("purple"), std::nullopt);
}

TEST(EnumNames, MapsBetweenEnums) {
  EXPECT_EQ(kWire[Color::kBlue], Wire::kB);
  EXPECT_EQ(kWire.find(Wire::kG), Color::kGreen);
  EXPECT_EQ(kWire.find(Wire::kUnset), std::nullopt);
}

}  // namespace
}  // namespace tandem
