// Memory that products prefetch for their caller.
#include "engine/backend/torch/cpu/read_ahead.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "tests/engine/backend/torch/cpu/numbers.h"

namespace tandem::cpu {
namespace {

TEST(ReadAhead, PartsFollowEachOther) {
  std::vector<std::byte> memory(1000);
  const std::span all(memory);
  ReadAhead ahead;
  EXPECT_TRUE(ahead.empty());
  ahead.add({});
  EXPECT_TRUE(ahead.empty());
  ahead.add(all.subspan(600, 300));
  ahead.add(all.subspan(100, 50));
  for (const int64_t n : {1, 2, 7, 350, 1000}) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto part = ahead.part(i, n);
      const int64_t first = part.data() - memory.data();
      EXPECT_EQ(first, bytes < 300 ? 600 + bytes : 100 + bytes - 300) << i << " of " << n;
      bytes += static_cast<int64_t>(part.size());
    }
    EXPECT_EQ(bytes, 350);
  }
  ahead.clear();
  EXPECT_TRUE(ahead.empty());
}

// Of several groups of rows, and with several threads.
TEST(ReadAhead, OfAProductDoesNotChangeIt) {
  constexpr int64_t kOuts = 200, kIn = 320, kRows = 11;
  QuantizedMatrix weights(std::vector<QuantizedMatrix::Part>{{QuantType::kQ80, kOuts}}, kIn);
  std::vector<std::byte> blocks(kIn / 32 * 34);
  for (int64_t o = 0; o < kOuts; ++o) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = static_cast<std::byte>(i * 37 + static_cast<size_t>(o) * 11);
    }
    for (size_t i = 0; i < blocks.size(); i += 34) {
      const auto scale = static_cast<_Float16>(0.25);
      std::memcpy(blocks.data() + i, &scale, sizeof(scale));
    }
    weights.pack(o, blocks.data());
  }
  const std::vector<float> x = as<float>(random_numbers(kRows * kIn, 1));
  const std::vector<std::byte> memory(3000);
  for (const int threads : {1, 3}) {
    set_team_size(threads);
    for (const int64_t rows : {int64_t{1}, kRows}) {
      const Rows<float> some{.x = x.data(), .rows = rows, .in = kIn};
      std::vector<float> want(static_cast<size_t>(rows * kOuts)), got = want;
      product(want.data(), some, weights, nullptr);
      for (int i = 0; i < 3; ++i) read_ahead().add(memory);
      product(got.data(), some, weights, nullptr);
      EXPECT_EQ(got, want);
      EXPECT_NE(got, std::vector<float>(got.size()));
      EXPECT_TRUE(read_ahead().empty()) << "it is that of one product";
    }
    set_team_size(1);
  }
}

}  // namespace
}  // namespace tandem::cpu
