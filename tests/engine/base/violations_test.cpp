#include "engine/base/violations.h"

#include <gtest/gtest.h>

#include "engine/base/status.h"

namespace tandem {
namespace {

using All = std::vector<Violation>;

TEST(Violations, OfOneField) {
  EXPECT_EQ(violations_of(out_of_range("n", 3, "[4, 5]")), (All{{"n", "3; allowed: [4, 5]"}}));
  EXPECT_EQ(violations_of(annotate(out_of_range("n", 3, "[4, 5]"), "file")),
            (All{{"n", "3; allowed: [4, 5]"}}));
  EXPECT_TRUE(violations_of(absl::OkStatus()).empty());
  EXPECT_TRUE(violations_of(absl::InvalidArgumentError("n: 3")).empty());
}

TEST(Violations, AllAtOnceWithALineForEach) {
  Violations wrong;
  EXPECT_FALSE(wrong.any());
  EXPECT_TRUE(wrong.status().ok());
  wrong.add(absl::OkStatus());
  EXPECT_FALSE(wrong.any());
  const absl::Status first = with_reason(out_of_range("a", 1, "2"), "TOO_SMALL");
  wrong.add(first);
  EXPECT_EQ(wrong.status(), first);  // alone, as it came
  wrong.add(absl::InvalidArgumentError("text: invalid UTF-8"));
  Violations more;
  more.add(out_of_range("b.c", "\"x\"", "y"));
  more.add(out_of_range("d[1]", 0, "1"));
  wrong.add(more.status());
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.status().message(),
            "a: 1; allowed: 2\ntext: invalid UTF-8\nb.c: \"x\"; allowed: y\nd[1]: 0; allowed: 1");
  EXPECT_EQ(violations_of(wrong.status()), (All{{"a", "1; allowed: 2"},
                                                {"", "text: invalid UTF-8"},
                                                {"b.c", "\"x\"; allowed: y"},
                                                {"d[1]", "0; allowed: 1"}}));
}

TEST(Violations, AnErrorOfAnotherKindGoesAlone) {
  Violations wrong;
  wrong.add(out_of_range("a", 1, "2"));
  wrong.add(absl::FailedPreconditionError("no template"));
  wrong.add(absl::NotFoundError("later"));
  EXPECT_EQ(wrong.status(), absl::FailedPreconditionError("no template"));
}

TEST(Violations, ManyAreBounded) {
  Violations wrong;
  for (int i = 0; i < 1000; ++i) wrong.add(out_of_range("ids", i, "none"));
  const All all = violations_of(wrong.status());
  ASSERT_EQ(all.size(), 17U);
  EXPECT_EQ(all[15], (Violation{"ids", "15; allowed: none"}));
  EXPECT_EQ(all[16], (Violation{"", "and 984 more fields"}));
}

// A caller that stops has not counted the others.
TEST(Violations, CallersStopWhenFull) {
  Violations wrong;
  int built = 0;
  while (!wrong.full()) wrong.add(out_of_range("ids", built++, "none"));
  EXPECT_EQ(built, 16);
  EXPECT_EQ(violations_of(wrong.status()).back(), (Violation{"", "and more fields"}));
}

TEST(Violations, ValuesCannotForgeOthers) {
  const std::string nul("x\0y\0", 4);
  EXPECT_EQ(violations_of(out_of_range("a", nul, "b")), (All{{"a", "x y ; allowed: b"}}));
}

}  // namespace
}  // namespace tandem
