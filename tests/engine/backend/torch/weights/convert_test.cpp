#include "engine/backend/torch/weights/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tandem {
namespace {

TEST(Convert, EveryHalfIsExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31),
              mantissa = static_cast<int>(bits & 1023);
    const float got = half_to_float(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::signbit(got), (bits & 0x8000) != 0);
    if (exponent == 31) {
      EXPECT_TRUE(mantissa == 0 ? std::isinf(got) : std::isnan(got)) << bits;
      continue;
    }
    const double size =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(std::fabs(got), size) << bits;
  }
}

// By the table of arXiv 2209.05433.
TEST(Convert, Fp8) {
  EXPECT_EQ(fp8_to_float(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(fp8_to_float(0x80)));
  EXPECT_EQ(fp8_to_float(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(fp8_to_float(0x07), std::ldexp(7.0f, -9));
  EXPECT_EQ(fp8_to_float(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(fp8_to_float(0x38), 1.0f);
  EXPECT_EQ(fp8_to_float(0xbc), -1.5f);
  EXPECT_EQ(fp8_to_float(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(fp8_to_float(0x7f)) && std::isnan(fp8_to_float(0xff)));
  for (uint8_t bits = 1; bits < 0x7f; ++bits) {
    EXPECT_GT(fp8_to_float(bits), fp8_to_float(static_cast<uint8_t>(bits - 1)));
  }
}

TEST(Convert, BfloatIsTheUpperHalfOfAFloat) {
  for (const float value : {0.0f, -0.0f, 1.0f, -2.5f, 1.0078125f, 3.0e38f, 1e-40f,
                            std::numeric_limits<float>::infinity()}) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    bits &= 0xffff0000u;
    float expected = 0;
    std::memcpy(&expected, &bits, sizeof(expected));
    EXPECT_EQ(bfloat_to_float(static_cast<uint16_t>(bits >> 16)), expected);
  }
}

// Elements of `values`, stored one byte off their natural alignment.
template <class T>
struct Stored {
  std::vector<std::byte> bytes;
  TensorView view;
  Stored(SafeDType dtype, const std::vector<T>& values) : bytes(values.size() * sizeof(T) + 1) {
    std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
    view = {
        dtype, {static_cast<int64_t>(values.size())}, bytes.data() + 1, values.size() * sizeof(T)};
  }
};

TEST(Convert, NarrowTypesAreCopiedOrRoundedToNearestEven) {
  const Stored<uint16_t> half(SafeDType::kF16, {0x3c00, 0xc100, 0x7e01});
  const Stored<uint16_t> bfloat(SafeDType::kBF16, {0x3f80, 0xc020, 0x7fc1});
  std::array<uint16_t, 2> two{};
  ASSERT_TRUE(to_half(half.view, 1, two).ok());
  EXPECT_THAT(two, testing::ElementsAre(0xc100, 0x7e01));  // bits are preserved, also of NaN
  ASSERT_TRUE(to_bfloat(bfloat.view, 1, two).ok());
  EXPECT_THAT(two, testing::ElementsAre(0xc020, 0x7fc1));
  ASSERT_TRUE(to_bfloat(half.view, 0, two).ok());
  EXPECT_THAT(two, testing::ElementsAre(0x3f80, 0xc020));
  ASSERT_TRUE(to_half(bfloat.view, 0, two).ok());
  EXPECT_THAT(two, testing::ElementsAre(0x3c00, 0xc100));

  // Ties, values just above a tie, and NaN.
  const Stored<float> single(SafeDType::kF32,
                             {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, -INFINITY, NAN});
  std::array<uint16_t, 5> five{};
  ASSERT_TRUE(to_bfloat(single.view, 0, five).ok());
  EXPECT_THAT(five, testing::ElementsAre(0x3f80, 0x3f82, 0x3f81, 0xff80, 0x7fc0));
  const Stored<double> twice(SafeDType::kF64, {0x1.002p0, 0x1.006p0, 0x1p-25, 65504, -INFINITY});
  ASSERT_TRUE(to_half(twice.view, 0, five).ok());
  EXPECT_THAT(five, testing::ElementsAre(0x3c00, 0x3c02, 0, 0x7bff, 0xfc00));

  // More elements than are converted at once.
  std::vector<float> many(3000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>(i % 200);
  const Stored<float> long_one(SafeDType::kF32, many);
  std::vector<uint16_t> bits(many.size());
  ASSERT_TRUE(to_bfloat(long_one.view, 0, bits).ok());
  for (size_t i = 0; i < many.size(); ++i) ASSERT_EQ(bfloat_to_float(bits[i]), many[i]);
}

TEST(Convert, HalfRejectsOverflow) {
  const Stored<float> single(SafeDType::kF32, {1.0f, 70000.0f});
  std::array<uint16_t, 2> two{};
  const absl::Status status = to_half(single.view, 0, two);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "weight: 70000; allowed: -65504 to 65504 in fp16");
  EXPECT_EQ(to_bfloat(single.view, 1, two).code(), absl::StatusCode::kOutOfRange);
  const Stored<uint16_t> half(SafeDType::kF16, {0x3c00});
  EXPECT_EQ(to_half(half.view, 0, two).code(), absl::StatusCode::kOutOfRange);
}

TEST(Convert, AllTypesAtAnyAddress) {
  const Stored<uint16_t> half(SafeDType::kF16, {0x3c00, 0xc100, 0x0001});
  const Stored<uint16_t> bfloat(SafeDType::kBF16, {0x3f80, 0xc020, 0x0001});
  const Stored<uint8_t> fp8(SafeDType::kF8E4M3, {0x38, 0xc2, 0x01});
  const Stored<float> single(SafeDType::kF32, {1.0f, -2.5f, 0x1p-149f});
  const Stored<double> twice(SafeDType::kF64, {1.0, -2.5, 0.1});
  std::array<float, 2> f{};
  std::array<double, 3> d{};
  for (const TensorView* view : {&half.view, &bfloat.view, &fp8.view, &single.view, &twice.view}) {
    ASSERT_TRUE(to_float(*view, 0, f).ok());
    EXPECT_EQ(f[0], 1.0f);
    EXPECT_EQ(f[1], -2.5f);
    ASSERT_TRUE(to_float(*view, 1, f).ok());
    EXPECT_EQ(f[0], -2.5f);
    ASSERT_TRUE(to_double(*view, 0, d).ok());
    EXPECT_EQ(d[1], -2.5);
  }
  EXPECT_EQ(f[1], 0.1f);  // rounded
  EXPECT_EQ(d[2], 0.1);
  ASSERT_TRUE(to_double(half.view, 0, d).ok());
  EXPECT_EQ(d[2], std::ldexp(1, -24));
}

TEST(Convert, Errors) {
  const Stored<uint32_t> integers(SafeDType::kI32, {1, 2, 3});
  const Stored<float> floats(SafeDType::kF32, {1, 2, 3});
  std::array<float, 2> out{};
  EXPECT_TRUE(absl::IsInvalidArgument(to_float(integers.view, 0, out)));
  EXPECT_TRUE(to_float(floats.view, 1, out).ok());
  EXPECT_TRUE(absl::IsOutOfRange(to_float(floats.view, 2, out)));
  EXPECT_TRUE(absl::IsOutOfRange(to_float(floats.view, -1, out)));
  EXPECT_TRUE(absl::IsOutOfRange(to_float(floats.view, 4, {})));
  EXPECT_TRUE(to_float(floats.view, 3, {}).ok());
}

}  // namespace
}  // namespace tandem
