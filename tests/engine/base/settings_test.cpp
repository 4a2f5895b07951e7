#include "engine/base/settings.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Settings, AreFoundByName) {
  const Settings settings = {{"a", 1}, {"b.c", true}};
  ASSERT_NE(find_setting(settings, "b.c"), nullptr);
  EXPECT_EQ(*find_setting(settings, "b.c"), SettingValue(true));
  EXPECT_EQ(find_setting(settings, "b"), nullptr);
  EXPECT_EQ(find_setting({}, ""), nullptr);
}

TEST(Settings, ASecondValueReplacesTheFirst) {
  Settings settings = {{"a", 1}};
  set_setting(&settings, "b", 2.5);
  set_setting(&settings, "a", "x");
  EXPECT_EQ(settings, (Settings{{"a", "x"}, {"b", 2.5}}));
}

TEST(Settings, TextIsWhatMessagesShow) {
  EXPECT_EQ(setting_text(true), "true");
  EXPECT_EQ(setting_text(int64_t{-7}), "-7");
  EXPECT_EQ(setting_text(0.1), "0.1");
  EXPECT_EQ(setting_text("CHAIN"), "CHAIN");
  EXPECT_EQ(setting_text(std::vector<std::string>{"a", "b"}), "a, b");
}

}  // namespace
}  // namespace tandem
