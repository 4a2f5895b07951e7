#include "engine/backend/torch/cpu/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/cpu/numbers.h"

namespace tandem {
namespace {

using cpu::Layout;
using cpu::PackedMatrix;
using cpu::WeightType;

class PackedMatrixOn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::force_target(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::force_target("").ok()); }
};

void expect_back(WeightType type, int64_t outs, int64_t in, Layout layout) {
  SCOPED_TRACE(testing::Message() << type_name(type) << " " << outs << " x " << in
                                  << (layout == Layout::kPairs ? " in pairs" : ""));
  const TestMatrix m(type, outs, in, random_numbers(outs * in, 1), layout);
  EXPECT_EQ(m.packed.outs(), outs);
  EXPECT_EQ(m.packed.in(), in);
  EXPECT_GE(m.packed.bytes(), outs * in);
  std::vector<double> row(static_cast<size_t>(in));
  std::vector<float> narrow(row.size());
  for (int64_t r = 0; r < outs; ++r) {
    m.packed.unpack(r, row.data());
    m.packed.unpack(r, narrow.data());
    for (size_t k = 0; k < row.size(); ++k) {
      const double want = m.values[static_cast<size_t>(r) * row.size() + k];
      ASSERT_NEAR(row[k], want, type == WeightType::kInt8 ? 1e-6 : 0);
      ASSERT_EQ(narrow[k], static_cast<float>(row[k]));
    }
  }
}

TEST_P(PackedMatrixOn, UnpacksWhatWasPacked) {
  for (const WeightType type : kWeightTypes) {
    for (const int64_t outs : {1, 5, 16, 33, 70, -2, -34, -70}) {
      for (const int64_t in : {1, 2, 15, 130}) {
        expect_back(type, std::abs(outs), in, outs < 0 ? Layout::kPairs : Layout::kInOrder);
      }
    }
  }
}

// Gates and gated values are in the two vectors of a panel.
TEST_P(PackedMatrixOn, PairsShareAPanel) {
  const int64_t half = 40;
  const int64_t in = 3;
  std::vector<double> numbers(static_cast<size_t>(2 * half * in));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i) / in;
  const TestMatrix m(WeightType::kFloat, 2 * half, in, numbers, Layout::kPairs);
  const int64_t lanes = m.packed.columns() / 2;
  ASSERT_EQ(m.packed.panels(), (half + lanes - 1) / lanes);
  for (int64_t i = 0; i < half; ++i) {
    const auto* panel = reinterpret_cast<const float*>(m.packed.panel(i / lanes));
    EXPECT_EQ(panel[i % lanes], static_cast<float>(i));
    EXPECT_EQ(panel[lanes + i % lanes], static_cast<float>(half + i));
  }
}

// Unused columns of the last panel and the unused half of the last input pair are zero.
TEST_P(PackedMatrixOn, PadsWithZeros) {
  for (const WeightType type : kWeightTypes) {
    const int64_t in = 7;
    const TestMatrix m(type, 3, in, std::vector<double>(21, 1.0));
    int64_t set = 0;
    for (int64_t i = 0; i < m.packed.panel_bytes(); ++i) set += m.packed.panel(0)[i] != std::byte{};
    // Nonzero bytes of the value 1.
    const int64_t each =
        type == WeightType::kFloat || type == WeightType::kBFloat16 || type == WeightType::kDouble
            ? 2
            : 1;
    EXPECT_EQ(set, 3 * in * each) << type_name(type);
  }
}

TEST_P(PackedMatrixOn, RowsCanBePackedInParts) {
  for (const WeightType type : kWeightTypes) {
    const int64_t outs = 45;
    const int64_t in = 11;
    const auto numbers = random_numbers(outs * in, 2);
    const TestMatrix whole(type, outs, in, numbers);
    const size_t element = type == WeightType::kDouble                               ? 8
                           : type == WeightType::kFloat || type == WeightType::kInt8 ? 4
                                                                                     : 2;
    std::vector<std::byte> source(numbers.size() * element);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto single = static_cast<float>(numbers[i]);
      const auto half = static_cast<_Float16>(numbers[i]);
      const uint16_t bits =
          type == WeightType::kBFloat16 ? bfloat_bits(numbers[i]) : std::bit_cast<uint16_t>(half);
      const void* from = element == 8   ? static_cast<const void*>(&numbers[i])
                         : element == 4 ? static_cast<const void*>(&single)
                                        : &bits;
      std::memcpy(source.data() + i * element, from, element);
    }
    PackedMatrix parts(type, outs, in);
    const auto at = [&](int64_t row) {
      return source.data() + static_cast<size_t>(row * in) * element;
    };
    parts.pack(20, 25, at(20));
    parts.pack(0, 3, at(0));
    parts.pack(3, 17, at(3));
    ASSERT_EQ(parts.panels(), whole.packed.panels());
    for (int64_t p = 0; p < parts.panels(); ++p) {
      EXPECT_EQ(std::memcmp(parts.panel(p), whole.packed.panel(p),
                            static_cast<size_t>(parts.panel_bytes())),
                0)
          << type_name(type);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, PackedMatrixOn, testing::ValuesIn(cpu::targets()),
                         [](const auto& info) { return info.param; });

TEST(PackedMatrix, RowOfZerosAsInt8) {
  const TestMatrix m(WeightType::kInt8, 2, 3, {0, 0, 0, 1, -2, 0.5});
  float row[3];
  m.packed.unpack(0, row);
  EXPECT_EQ(row[0], 0);
  EXPECT_EQ(row[2], 0);
  m.packed.unpack(1, row);
  EXPECT_FLOAT_EQ(row[1], -2);
}

TEST(CpuTargets, AreNamedAndForced) {
  const std::vector<std::string> all = cpu::targets();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.back(), "EMU128");
  EXPECT_EQ(cpu::target(), all.front());
  for (const std::string& t : all) {
    ASSERT_TRUE(cpu::force_target(t).ok());
    EXPECT_EQ(cpu::target(), t);
    EXPECT_EQ(cpu::targets(), all);
  }
  const absl::Status status = cpu::force_target("MMX");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 21), "target: MMX; allowed:");
  EXPECT_EQ(cpu::target(), all.front());
}

}  // namespace
}  // namespace tandem
