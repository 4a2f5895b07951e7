#include "engine/sampling/params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace tandem::sampling {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

void expect_refused(const absl::Status& status, const std::string& field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()).rfind(field + ": ", 0), 0u) << status;
}

TEST(Params, Ranges) {
  EXPECT_TRUE(validate(0, 0, 1, 0).ok());
  EXPECT_TRUE(validate(100, 2147483647, 1e-9, 1).ok());
  EXPECT_TRUE(validate(0.7, 50, 0.9, 0.05).ok());
  for (const double x : {-1e-9, 100.1, kNan, kInf, -kInf}) {
    expect_refused(validate(x, 0, 1, 0), "temperature");
  }
  for (const int64_t x : {int64_t{-1}, int64_t{2147483648}}) {
    expect_refused(validate(1, x, 1, 0), "top_k");
  }
  for (const double x : {0.0, -0.5, 1.0001, kNan, kInf}) {
    expect_refused(validate(1, 0, x, 0), "top_p");
  }
  for (const double x : {-0.1, 1.1, kNan, -kInf}) expect_refused(validate(1, 0, 1, x), "min_p");
}

TEST(Params, MessageNamesFieldValueAndRange) {
  EXPECT_EQ(validate(-2, 0, 1, 0).message(), "temperature: -2; allowed: [0, 100]");
  EXPECT_EQ(validate(1, 0, 0, 0).message(), "top_p: 0; allowed: (0, 1]");
}

}  // namespace
}  // namespace tandem::sampling
