// The CPU product against the definition, and its promise about bits.
#include "engine/backend/torch/cpu/product.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "engine/backend/torch/cpu/parallel.h"

namespace tandem {
namespace {

template <class T>
std::vector<T> random_numbers(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(static_cast<T>(normal(random)));
  return v;
}

template <class T, class O>
void expect_definition(double tolerance) {
  for (const int64_t in : {1, 7, 16, 37, 64, 200}) {
    for (const int64_t outs : {1, 3, 4, 13, 70}) {
      const auto weight = random_numbers<T>(outs * in, 1);
      const auto bias = random_numbers<T>(outs, 2);
      for (const int64_t rows : {1, 2, 3, 4, 6, 9, 65, 130}) {
        const auto x = random_numbers<T>(rows * in, 3);
        for (const bool add : {false, true}) {
          std::vector<O> out(static_cast<size_t>(rows * outs), O(1.5f));
          cpu::product<T, O>(out.data(), x.data(), weight.data(), add ? nullptr : bias.data(), rows,
                             outs, in, add);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t n = 0; n < outs; ++n) {
              double want = add ? 1.5 : static_cast<double>(bias[static_cast<size_t>(n)]);
              for (int64_t k = 0; k < in; ++k) {
                want += static_cast<double>(x[static_cast<size_t>(r * in + k)]) *
                        static_cast<double>(weight[static_cast<size_t>(n * in + k)]);
              }
              ASSERT_NEAR(static_cast<double>(out[static_cast<size_t>(r * outs + n)]), want,
                          tolerance * (1 + std::abs(want)))
                  << rows << " x " << outs << " x " << in;
            }
          }
        }
      }
    }
  }
}

TEST(CpuProduct, IsTheDefinition) {
  expect_definition<double, double>(1e-13);
  expect_definition<double, float>(1e-6);
  expect_definition<float, float>(2e-5);
  expect_definition<c10::BFloat16, float>(2e-5);
  expect_definition<c10::BFloat16, c10::BFloat16>(0.01);
}

template <class T, class O>
void expect_same_bits() {
  const int64_t in = 205;
  const int64_t outs = 301;
  const int64_t rows = 140;
  const auto weight = random_numbers<T>(outs * in, 4);
  const auto x = random_numbers<T>(rows * in, 5);
  std::vector<O> alone(static_cast<size_t>(rows * outs));
  for (int64_t r = 0; r < rows; ++r) {
    cpu::product<T, O>(alone.data() + r * outs, x.data() + r * in, weight.data(), nullptr, 1, outs,
                       in, false);
  }
  for (const int threads : {1, 3}) {
    cpu::set_team_size(threads);
    for (const int64_t n : {2, 3, 4, 5, 11, 64, 140}) {
      std::vector<O> together(static_cast<size_t>(n * outs));
      cpu::product<T, O>(together.data(), x.data(), weight.data(), nullptr, n, outs, in, false);
      for (size_t i = 0; i < together.size(); ++i) ASSERT_EQ(together[i], alone[i]) << n;
    }
    cpu::set_team_size(1);
  }
}

TEST(CpuProduct, RowsHaveTheSameBitsTogetherAndAlone) {
  expect_same_bits<float, float>();
  expect_same_bits<double, double>();
  expect_same_bits<c10::BFloat16, float>();
}

}  // namespace
}  // namespace tandem
