#include "server/edge/traceparent.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParent, AsW3cHasIt) {
  const auto parent = parse_traceparent(kParent);
  ASSERT_TRUE(parent.has_value());
  EXPECT_EQ(parent->trace_id.size(), 16u);
  EXPECT_EQ(parent->trace_id[0], '\x0a');
  EXPECT_EQ(parent->span_id.substr(6), "\x33\x31");
  EXPECT_TRUE(parent->sampled);
  const std::string text = kParent;
  EXPECT_FALSE(parse_traceparent(text.substr(0, 53) + "02")->sampled);
  for (const std::string& wrong :
       {std::string(), text.substr(1), text + "0", "ff" + text.substr(2), "0g" + text.substr(2),
        "0A" + text.substr(2), "00-" + std::string(32, '0') + text.substr(35),
        text.substr(0, 36) + std::string(16, '0') + "-01",
        text.substr(0, 35) + "_" + text.substr(36)}) {
    EXPECT_FALSE(parse_traceparent(wrong).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace tandem
