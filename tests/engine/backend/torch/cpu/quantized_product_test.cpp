// Products with quantized weights against a plain fp64 reference, with the same bits on every
// target, in any batch, and for any thread count and division of the batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/backend/torch/weights/gguf/blocks.h"

namespace tandem::cpu {
namespace {

struct Type {
  QuantType type;
  BlockType block;
};
constexpr Type kTypes[] = {{QuantType::kQ40, BlockType::kQ40}, {QuantType::kQ41, BlockType::kQ41},
                           {QuantType::kQ50, BlockType::kQ50}, {QuantType::kQ51, BlockType::kQ51},
                           {QuantType::kQ80, BlockType::kQ80}, {QuantType::kQ4K, BlockType::kQ4K},
                           {QuantType::kQ5K, BlockType::kQ5K}, {QuantType::kQ6K, BlockType::kQ6K}};

const BlockFormat& file_format(const Type& t) {
  return *find_block_format(static_cast<uint32_t>(t.block));
}

// Offsets of a block's fp16 numbers.
std::vector<size_t> halves(const Type& t) {
  switch (t.type) {
    case QuantType::kQ6K:
      return {208};
    case QuantType::kQ40:
    case QuantType::kQ50:
    case QuantType::kQ80:
      return {0};
    default:
      return {0, 2};
  }
}

// Random rows of blocks and their values. extreme: all codes are minimal or maximal.
struct Weights {
  QuantizedMatrix matrix;
  std::vector<float> values;  // [outs, in]
};
Weights random_weights(const std::vector<std::pair<Type, int64_t>>& parts, int64_t in,
                       Layout layout = Layout::kInOrder, bool extreme = false) {
  std::vector<QuantizedMatrix::Part> shapes;
  for (const auto& [type, outs] : parts) shapes.push_back({type.type, outs});
  Weights w{QuantizedMatrix(shapes, in, layout), {}};
  std::mt19937_64 random(static_cast<uint64_t>(in) + parts.size());
  int64_t row = 0;
  for (const auto& [type, outs] : parts) {
    const BlockFormat& f = file_format(type);
    const int64_t blocks = in / f.values;
    std::vector<std::byte> bytes(static_cast<size_t>(blocks * f.bytes));
    std::vector<float> values(static_cast<size_t>(f.values));
    for (int64_t r = 0; r < outs; ++r) {
      for (std::byte& b : bytes) {
        b = extreme ? (r % 2 == 0 ? std::byte{0xff} : std::byte{0}) : std::byte(random() & 0xff);
      }
      for (int64_t b = 0; b < blocks; ++b) {
        std::byte* block = bytes.data() + b * f.bytes;
        for (const size_t at : halves(type)) {
          // Both signs, with zeros and subnormals.
          const double magnitude =
              random() % 8 == 0 ? 1e-6 : 0.01 * static_cast<double>(random() % 100);
          const auto scale = static_cast<_Float16>(random() % 2 == 0 ? magnitude : -magnitude);
          std::memcpy(block + at, &scale, sizeof(scale));
        }
        f.decode(block, values.data());
        w.values.insert(w.values.end(), values.begin(), values.end());
      }
      w.matrix.pack(row++, bytes.data());
    }
  }
  return w;
}

std::vector<float> random_rows(int64_t n, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<float> product_of(const QuantizedMatrix& w, const std::vector<float>& x, int64_t rows,
                              Then then = Then::kStore, const float* bias = nullptr,
                              float before = -1) {
  const int64_t outs = then == Then::kGate ? w.outs() / 2 : w.outs();
  std::vector<float> out(static_cast<size_t>(rows * outs), before);
  product(out.data(), Rows<float>{.x = x.data(), .rows = rows, .in = w.in()}, w, bias, then);
  return out;
}

// Quantized to int8 per 32 elements, as the kernels do.
std::vector<double> rounded(const std::vector<float>& x) {
  std::vector<double> all;
  for (size_t i = 0; i < x.size(); i += 32) {
    float most = 0;
    for (size_t k = i; k < i + 32; ++k) most = std::max(most, std::abs(x[k]));
    const float step = most / 127, inverse = most < 0x1p-100f ? 0 : 127 / most;
    for (size_t k = i; k < i + 32; ++k) {
      all.push_back(static_cast<double>(step) * std::nearbyint(x[k] * inverse));
    }
  }
  return all;
}

struct Expected {
  double value, size;  // size: sum of magnitudes, for the tolerance
};
Expected reference(const Weights& w, const std::vector<double>& x, int64_t row, int64_t out) {
  Expected e{0, 0};
  const auto in = static_cast<size_t>(w.matrix.in());
  for (size_t k = 0; k < in; ++k) {
    const double term = x[static_cast<size_t>(row) * in + k] *
                        static_cast<double>(w.values[static_cast<size_t>(out) * in + k]);
    e.value += term;
    e.size += std::abs(term);
  }
  return e;
}

void expect_near(float got, const Expected& e, const std::string& where) {
  EXPECT_NEAR(got, e.value, 4e-6 * e.size + 1e-30) << where;
}

class QuantizedProduct : public testing::Test {
 protected:
  void TearDown() override {
    set_team_size(1);
    ASSERT_TRUE(force_target("").ok());
  }
};

TEST(QuantizedMatrix, IsLosslessAndTakesTheFilesMemory) {
  for (const Type& type : kTypes) {
    const BlockFormat& f = file_format(type);
    const int64_t in = 512;
    const Weights w = random_weights({{type, 64}}, in);
    EXPECT_EQ(w.matrix.bytes(), 64 * in / f.values * f.bytes) << f.name;
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t r = 0; r < 64; ++r) {
      w.matrix.unpack(r, row.data());
      EXPECT_EQ(std::memcmp(row.data(), w.values.data() + r * in, row.size() * sizeof(float)), 0)
          << f.name << ", row " << r;
    }
  }
}

TEST_F(QuantizedProduct, IsNearTheReferenceAndEqualOnEveryTarget) {
  for (const Type& type : kTypes) {
    for (const bool extreme : {false, true}) {
      // More than 14 rows: both units of a panel at once on some targets.
      const int64_t in = file_format(type).values == 32 ? 96 : 768, rows = extreme ? 15 : 7;
      const Weights w = random_weights({{type, 50}}, in, Layout::kInOrder, extreme);
      std::vector<float> x = random_rows(rows * in);
      // Codes of 127 and -127: with extreme weights the largest sums of 32 products.
      for (int64_t i = 0; extreme && i < 4 * in; ++i) {
        const int64_t row = i / in;
        x[static_cast<size_t>(i)] = row < 2                     ? static_cast<float>(1 - 2 * row)
                                    : (i >> (row - 2)) % 2 == 0 ? 1.f
                                                                : -1.f;
      }
      const std::vector<double> numbers = rounded(x);
      std::vector<float> first;
      for (const std::string& target : targets()) {
        ASSERT_TRUE(force_target(target).ok());
        const std::vector<float> out = product_of(w.matrix, x, rows);
        if (first.empty()) first = out;
        EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size() * sizeof(float)), 0)
            << file_format(type).name << " on " << target;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < 50; ++o) {
            expect_near(out[static_cast<size_t>(r * 50 + o)], reference(w, numbers, r, o),
                        std::string(file_format(type).name) + " on " + target);
          }
        }
      }
    }
  }
}

TEST_F(QuantizedProduct, IsBatchInvariant) {
  for (const Type& type : kTypes) {
    // More groups of inputs, and of rows, than kernels process together.
    const int64_t in = file_format(type).values == 32 ? 96 : 768, outs = 60, most = 70;
    const Weights w = random_weights({{type, outs}}, in);
    const std::vector<float> x = random_rows(most * in);
    const std::vector<float> alone = [&] {
      std::vector<float> all;
      for (int64_t r = 0; r < most; ++r) {
        const std::vector<float> one(x.begin() + r * in, x.begin() + (r + 1) * in);
        const std::vector<float> out = product_of(w.matrix, one, 1);
        all.insert(all.end(), out.begin(), out.end());
      }
      return all;
    }();
    for (const std::string& target : targets()) {
      ASSERT_TRUE(force_target(target).ok());
      for (const int threads : {1, 2, 3}) {
        set_team_size(threads);
        for (int64_t rows = 2; rows <= most; rows += rows < 20 ? 1 : 25) {
          const std::vector<float> out = product_of(w.matrix, x, rows);
          EXPECT_EQ(std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)), 0)
              << file_format(type).name << " on " << target << ", " << rows << " rows, " << threads
              << " threads";
        }
      }
    }
    ASSERT_TRUE(force_target("").ok());
  }
}

TEST_F(QuantizedProduct, FirstColumnsOnly) {
  const int64_t in = 256, outs = 100;
  const Weights w = random_weights({{kTypes[5], 50}, {kTypes[4], 50}}, in);
  for (const int64_t rows : {1, 5}) {
    const std::vector<float> x = random_rows(rows * in), all = product_of(w.matrix, x, rows);
    for (const int64_t first : {1, 16, 33, 60, 99, 100, 200}) {
      std::vector<float> out(static_cast<size_t>(rows * outs), -7);
      product(out.data(), Rows<float>{.x = x.data(), .rows = rows, .in = in}, w.matrix, nullptr,
              Then::kStore, Activation::kSilu, {.first = first});
      int64_t left = 0;
      for (int64_t i = 0; i < rows * outs; ++i) {
        const auto at = static_cast<size_t>(i);
        left += out[at] == -7;
        EXPECT_TRUE(out[at] == all[at] || (out[at] == -7 && i % outs >= first))
            << first << ", " << i;
      }
      // Panels have at most 50 columns here, the width of a part.
      if (first <= 50) EXPECT_GE(left, rows * 50);
    }
  }
}

// Single columns have the bits of a whole product, and their panels alone are computed.
TEST_F(QuantizedProduct, SingleColumns) {
  const int64_t in = 256, outs = 400;
  for (size_t type = 0; type < std::size(kTypes); ++type) {
    const Type& last = kTypes[(type + 1) % std::size(kTypes)];
    const Weights w = random_weights({{kTypes[type], 150}, {last, 250}}, in);
    for (const int threads : {1, 3}) {
      set_team_size(threads);
      for (const int64_t rows : {1, 5, 12}) {
        const std::vector<float> x = random_rows(rows * in), all = product_of(w.matrix, x, rows);
        for (const std::vector<int32_t>& more : std::vector<std::vector<int32_t>>{
                 {399}, {70, 149, 150, 151, 300}, {2, 40, 41, 398, 399}}) {
          std::vector<float> out(static_cast<size_t>(rows * outs), -7);
          product(out.data(), Rows<float>{.x = x.data(), .rows = rows, .in = in}, w.matrix, nullptr,
                  Then::kStore, Activation::kSilu, {.first = 33, .more = more});
          size_t left = 0;
          for (size_t i = 0; i < out.size(); ++i) {
            const auto column = static_cast<int32_t>(i % static_cast<size_t>(outs));
            const bool needed = column < 33 || std::ranges::find(more, column) != more.end();
            left += out[i] == -7;
            ASSERT_TRUE(out[i] == all[i] || (!needed && out[i] == -7)) << type << ", " << i;
          }
          EXPECT_GE(left + static_cast<size_t>(rows) * (64 + 32 * more.size()), out.size());
        }
      }
      set_team_size(1);
    }
  }
}

TEST_F(QuantizedProduct, PartsOfSeveralTypes) {
  const int64_t in = 256, rows = 3;
  const Weights w = random_weights({{kTypes[2], 64}, {kTypes[5], 40}, {kTypes[4], 8}}, in);
  const std::vector<float> x = random_rows(rows * in), bias = random_rows(112, 2);
  const std::vector<double> numbers = rounded(x);
  const std::vector<float> out = product_of(w.matrix, x, rows, Then::kAdd, bias.data(), 0.5f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < 112; ++o) {
      Expected e = reference(w, numbers, r, o);
      e.value += static_cast<double>(bias[static_cast<size_t>(o)]) + 0.5;
      e.size += 4;
      expect_near(out[static_cast<size_t>(r * 112 + o)], e, std::to_string(o));
    }
  }
}

TEST_F(QuantizedProduct, GatesTheSecondHalfWithTheFirst) {
  for (const int64_t width : {16, 24, 100}) {
    const int64_t in = 64, rows = 2;
    const Weights w = random_weights({{kTypes[1], width}, {kTypes[1], width}}, in, Layout::kPairs);
    const std::vector<float> x = random_rows(rows * in), bias = random_rows(2 * width, 2);
    const std::vector<double> numbers = rounded(x);
    const std::vector<float> out = product_of(w.matrix, x, rows, Then::kGate, bias.data());
    std::vector<float> row(static_cast<size_t>(in));
    w.matrix.unpack(width, row.data());
    EXPECT_EQ(std::memcmp(row.data(), w.values.data() + width * in, row.size() * sizeof(float)), 0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < width; ++o) {
        const Expected a = reference(w, numbers, r, o), b = reference(w, numbers, r, width + o);
        const double gate = a.value + static_cast<double>(bias[static_cast<size_t>(o)]);
        const double up = b.value + static_cast<double>(bias[static_cast<size_t>(width + o)]);
        const double expected = gate / (1 + std::exp(-gate)) * up;
        EXPECT_NEAR(out[static_cast<size_t>(r * width + o)], expected,
                    2e-5 * (std::abs(expected) + a.size + b.size));
      }
    }
  }
}

TEST_F(QuantizedProduct, AddsToSomeRowsBeforeTheGate) {
  const int64_t width = 40, in = 64, rows = 5;
  const Weights w = random_weights({{kTypes[1], width}, {kTypes[1], width}}, in, Layout::kPairs);
  const std::vector<float> x = random_rows(rows * in), bias = random_rows(2 * width, 2);
  const std::vector<float> sums = random_rows(2 * 2 * width, 3);
  const std::vector<int32_t> row{-1, 1, -1, -1, 0};
  const AddedRows<float> added{sums.data(), row.data()};
  const std::vector<double> numbers = rounded(x);
  const std::vector<float> without = product_of(w.matrix, x, rows, Then::kGate, bias.data());
  std::vector<float> out(without.size());
  product(out.data(), Rows<float>{.x = x.data(), .rows = rows, .in = in}, w.matrix, bias.data(),
          Then::kGate, Activation::kSilu, {}, &added);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t from = row[static_cast<size_t>(r)];
    for (int64_t o = 0; o < width; ++o) {
      const float got = out[static_cast<size_t>(r * width + o)];
      if (from < 0) {
        EXPECT_EQ(got, without[static_cast<size_t>(r * width + o)]);
        continue;
      }
      const Expected a = reference(w, numbers, r, o), b = reference(w, numbers, r, width + o);
      const auto more = [&](int64_t c) {
        return static_cast<double>(bias[static_cast<size_t>(c)]) +
               static_cast<double>(sums[static_cast<size_t>(from * 2 * width + c)]);
      };
      const double gate = a.value + more(o), up = b.value + more(width + o);
      const double expected = gate / (1 + std::exp(-gate)) * up;
      EXPECT_NEAR(got, expected, 2e-5 * (std::abs(expected) + a.size + b.size));
    }
  }
}

TEST_F(QuantizedProduct, NonFiniteValuesStayInTheirRow) {
  const int64_t in = 64;
  const Weights w = random_weights({{kTypes[0], 32}}, in);
  std::vector<float> x = random_rows(3 * in);
  x[static_cast<size_t>(in) + 5] = INFINITY;
  const std::vector<float> out = product_of(w.matrix, x, 3);
  for (size_t o = 0; o < 32; ++o) {
    EXPECT_TRUE(std::isfinite(out[o]));
    EXPECT_TRUE(std::isnan(out[32 + o]));
    EXPECT_TRUE(std::isfinite(out[64 + o]));
  }
}

}  // namespace
}  // namespace tandem::cpu
