#include "engine/base/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tandem {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(DenseLayer, MultipliesAddsAndActivates) {
  DenseLayer dense{.in = 2, .out = 3, .weight = {1, 2, 3, 4, 5, 6}};
  EXPECT_THAT(dense.of({1, -1}), ElementsAre(-1, -1, -1));
  dense.bias = {0.5F, 1, 1.5F};
  EXPECT_THAT(dense.of({2, 1}), ElementsAre(4.5, 11, 17.5));
  dense.tanh = true;
  EXPECT_THAT(dense.of({0, 0}),
              ElementsAre(DoubleNear(std::tanh(0.5), 1e-12), DoubleNear(std::tanh(1), 1e-12),
                          DoubleNear(std::tanh(1.5), 1e-12)));
}

TEST(EmbeddingSettings, WidthIsThatOfTheLastLayer) {
  EmbeddingSettings settings;
  EXPECT_EQ(settings.width(7), 7);
  settings.dense = {{.in = 7, .out = 9}, {.in = 9, .out = 4}};
  EXPECT_EQ(settings.width(7), 4);
}

}  // namespace
}  // namespace tandem
