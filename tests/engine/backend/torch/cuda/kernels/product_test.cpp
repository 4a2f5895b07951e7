// Products of up to 16 rows, with the device's grids.
#include <gtest/gtest.h>

#include <functional>

#include "tests/engine/backend/torch/cuda/kernels/product_check.h"

namespace tandem::cuda {
namespace {

template <class T>
class ProductKernel : public testing::Test {
 protected:
  void SetUp() override { emulator::seed(7); }
};
using NarrowTypes = testing::Types<BFloat16, Half>;
TYPED_TEST_SUITE(ProductKernel, NarrowTypes);

// From less than a step to several rounds of all warps; from less than a tile to several groups.
TYPED_TEST(ProductKernel, SumsInTheDocumentedOrder) {
  uint64_t seed = 0;
  for (const int64_t in : {8, 40, 256, 1160}) {
    for (const int64_t outs : {1, 16, 70}) {
      const ProductShape s{.outs = outs, .in = in};
      ++seed;
      EXPECT_EQ(check_product<TypeParam>(s, 1 + static_cast<int>(seed % 16), seed), "");
    }
  }
}

TYPED_TEST(ProductKernel, IntegersMatchTheCpu) {
  for (const int rows : {1, 8, 9, 16}) {
    for (const ProductThen then : {ProductThen::kStore, ProductThen::kAdd}) {
      const ProductShape s{.outs = 50, .in = 520, .then = then, .bias = true, .whole = true};
      EXPECT_EQ(check_product<TypeParam>(s, rows, 20), "");
    }
  }
}

TYPED_TEST(ProductKernel, AddsActivatesAndGates) {
  uint64_t seed = 40;
  for (const ProductThen then :
       {ProductThen::kStore, ProductThen::kAdd, ProductThen::kActivate, ProductThen::kGate}) {
    for (const bool bias : {false, true}) {
      for (const int rows : {1, 5, 16}) {
        ProductShape s{.outs = 2 * 37, .in = 136, .then = then, .bias = bias, .in_fp32 = false};
        s.activation = rows == 5 ? Activation::kGeluTanh : Activation::kSilu;
        EXPECT_EQ(check_product<TypeParam>(s, rows, ++seed), "");
      }
    }
  }
}

// Rows without an addition keep their bits.
TYPED_TEST(ProductKernel, GatesAfterAdditions) {
  for (const int rows : {1, 4, 16}) {
    ProductShape s{.outs = 2 * 37, .in = 136, .then = ProductThen::kGate, .bias = true};
    const std::vector<float> plain = ProductRig<TypeParam>(s, 50).run(first_rows(rows));
    s.added = true;
    EXPECT_EQ(check_product<TypeParam>(s, rows, 50), "");
    const std::vector<float> with = ProductRig<TypeParam>(s, 50).run(first_rows(rows));
    for (size_t i = 0; i < plain.size(); ++i) {
      if (AddedNumbers::place(static_cast<int>(i / 37)) < 0) ASSERT_EQ(with[i], plain[i]) << i;
    }
  }
}

TYPED_TEST(ProductKernel, FirstColumnsOnly) {
  for (const int64_t first : {1, 16, 37}) {
    for (const int rows : {2, 12}) {
      const ProductShape s{.outs = 70, .in = 64, .first = first};
      EXPECT_EQ(check_product<TypeParam>(s, rows, 80), "");
    }
  }
}

// Exactness of greedy decoding depends on this property.
TYPED_TEST(ProductKernel, IsBatchInvariantUpToSixteenRows) {
  EXPECT_EQ(check_product_rows<TypeParam>({.outs = 20, .in = 328, .bias = true}, 90), "");
  const std::vector<int> some = {2, 8, 9, 16};
  for (const ProductThen then : {ProductThen::kGate, ProductThen::kAdd}) {
    EXPECT_EQ(check_product_rows<TypeParam>({.outs = 20, .in = 72, .then = then}, 91, some), "");
  }
}

// The number of blocks does not matter.
TYPED_TEST(ProductKernel, BitsDoNotDependOnTheGrid) {
  for (const int rows : {3, 14}) {
    ProductShape s{.outs = 100, .in = 104, .blocks = 1};
    const std::vector<float> one = ProductRig<TypeParam>(s, 95).run(first_rows(rows));
    for (const int64_t blocks : {2, 3, 100}) {
      s.blocks = blocks;
      EXPECT_EQ(same_bits("", ProductRig<TypeParam>(s, 95).run(first_rows(rows)), one), "");
    }
  }
}

// Padding is not read: NaN after the end of a row has no effect.
TEST(PackedWeights, ArePaddedWithZeros) {
  const PackedShape s{20, 40, false};
  EXPECT_EQ(s.tiles(), 2);
  EXPECT_EQ(s.steps(), 2);
  EXPECT_EQ(s.words(), 2 * 2 * 2 * 32);
  const DeviceArray<BFloat16> weights("weights", std::vector<double>(20 * 40, 1));
  const DeviceArray<BFloat16> packed("packed", s.words() * 8);
  pack<BFloat16>({}, packed, weights, s);
  double sum = 0;
  for (const double x : packed.numbers()) sum += x;
  EXPECT_EQ(sum, 20 * 40);
}

TEST(PackedWeights, PairsAlternateGatesAndValues) {
  const PackedShape s{2 * 20, 8, true};
  EXPECT_EQ(s.tiles(), 4);
  EXPECT_EQ(s.out_of(0, 3), 3);
  EXPECT_EQ(s.out_of(1, 3), 23);
  EXPECT_EQ(s.out_of(2, 3), 19);
  EXPECT_EQ(s.out_of(3, 3), 39);
  EXPECT_EQ(s.out_of(2, 4), -1);
}

TEST(ProductKernelLaunches, FuseTheEpilogue) {
  const auto launches = [](const ProductShape& s, int rows) {
    const ProductRig<BFloat16> rig(s, 1);
    const int64_t before = emulator::launches();
    rig.run(first_rows(rows));
    return emulator::launches() - before;
  };
  EXPECT_EQ(launches({.then = ProductThen::kGate, .bias = true}, 4), 1);
  EXPECT_EQ(launches({.then = ProductThen::kAdd, .bias = true}, 16), 1);
}

}  // namespace
}  // namespace tandem::cuda
