// Casts: look-ups of edges, and frontier pages of roles.
#include "engine/pass/cast.h"

#include <gtest/gtest.h>

namespace tandem::test {
namespace {

TEST(Cast, PlainRolesHaveNoEdges) {
  const auto cast = make_cast({{Role::kLarge, ModelId(0)}, {Role::kSmall, ModelId(1)}});
  EXPECT_FALSE(cast->has_edges());
  EXPECT_EQ(cast->memory_of(0), -1);
  EXPECT_EQ(cast->conditioning_of(1), nullptr);
  EXPECT_FALSE(cast->conditions(0));
}

TEST(Cast, EdgesAreFoundByRole) {
  const Cast cast{
      .roles = {{Role::kLarge, ModelId(0)}, {Role::kSmall, ModelId(1)}, encoder_role(ModelId(2))},
      .conditioning = {{.from = 0, .to = 2, .layer = 3}},
      .memories = {{.reader = 1, .encoder = 2}}};
  EXPECT_TRUE(cast.has_edges());
  EXPECT_TRUE(cast.roles[2].encodes);
  EXPECT_EQ(cast.memory_of(0), -1);
  EXPECT_EQ(cast.memory_of(1), 2);
  EXPECT_TRUE(cast.conditions(0));
  EXPECT_FALSE(cast.conditions(2));
  ASSERT_NE(cast.conditioning_of(2), nullptr);
  EXPECT_EQ(cast.conditioning_of(2)->layer, 3);
  EXPECT_EQ(cast.conditioning_of(1), nullptr);
}

// Of 40 rows in pages of 4, in a model of 6 layers.
TEST(Cast, FrontierPagesAreBoundedByTheRowsBetweenLayers) {
  const auto pages = [](int layers, int frontier_rows) {
    return CastRole{Role::kSmall, ModelId(0), layers, frontier_rows}.frontier_pages(6, 4, 40);
  };
  EXPECT_EQ(pages(0, 0), 0) << "all layers";
  EXPECT_EQ(pages(6, 3), 0) << "all layers";
  EXPECT_EQ(pages(2, 0), 10) << "any row may stop";
  EXPECT_EQ(pages(2, 1), 1);
  EXPECT_EQ(pages(2, 2), 2) << "two rows may be in two pages";
  EXPECT_EQ(pages(2, 5), 2);
  EXPECT_EQ(pages(2, 6), 3);
  EXPECT_EQ(pages(2, 100), 10);
}

}  // namespace
}  // namespace tandem::test
