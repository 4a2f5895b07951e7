#include "engine/host/methods/fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem {
namespace {

enum class Shape { kChain, kTree };

struct Base {
  int count = 3;
};
struct Params : Base {
  float share = 0.6F;
  bool on = true;
  std::optional<int> window;
  Shape shape = Shape::kTree;
  std::string path;
  std::vector<std::string> workers;
};

Fields<Params> fields() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  return Fields<Params>()
      .add("count", &Params::count, {1, 1 << 20}, "how many")
      .add("share", &Params::share, {0, kInf}, "of all", Field::By::kRequest)
      .add("on", &Params::on, "or off")
      .add("window", &Params::window, {1, 8}, "rows")
      .add("shape", &Params::shape, {{"SHAPE_CHAIN", Shape::kChain}, {"SHAPE_TREE", Shape::kTree}},
           "of drafts")
      .add("path", &Params::path, "a file", Field::By::kDeployment)
      .add("workers", &Params::workers, "models", Field::By::kDeployment);
}

TEST(Fields, DefaultsAreTheStructsAndFloatsAreAsWritten) {
  EXPECT_EQ(fields().read(Params()), (Settings{{"count", 3},
                                               {"share", 0.6},
                                               {"on", true},
                                               {"shape", "SHAPE_TREE"},
                                               {"path", ""},
                                               {"workers", std::vector<std::string>()}}));
}

TEST(Fields, SettingsReplaceOnlyTheirDefaults) {
  Params a;
  const Settings set = {{"shape", "SHAPE_CHAIN"},
                        {"window", 4},
                        {"share", 2},
                        {"path", "x"},
                        {"workers", std::vector<std::string>{"w1", "w2"}}};
  fields().apply(set, &a);
  EXPECT_EQ(a.shape, Shape::kChain);
  EXPECT_EQ(a.window, 4);
  EXPECT_EQ(a.share, 2);
  EXPECT_EQ(a.path, "x");
  EXPECT_EQ(a.workers, (std::vector<std::string>{"w1", "w2"}));
  EXPECT_EQ(a.count, 3);
  EXPECT_TRUE(a.on);
  fields().apply({{"share", 1e300}}, &a);
  EXPECT_EQ(a.share, std::numeric_limits<float>::infinity());
}

TEST(Fields, AreDescribed) {
  const std::vector<Field> all = fields().described();
  ASSERT_EQ(all.size(), 7U);
  EXPECT_EQ(all[0].kind, Field::Kind::kInteger);
  EXPECT_EQ(all[0].meaning, "how many");
  EXPECT_EQ(all[1].kind, Field::Kind::kNumber);
  EXPECT_EQ(all[1].by, Field::By::kRequest);
  EXPECT_EQ(all[2].kind, Field::Kind::kSwitch);
  EXPECT_EQ(all[3].kind, Field::Kind::kInteger);
  EXPECT_EQ(all[4].choices, (std::vector<std::string>{"SHAPE_CHAIN", "SHAPE_TREE"}));
  EXPECT_EQ(all[5].kind, Field::Kind::kText);
  EXPECT_EQ(all[6].kind, Field::Kind::kTexts);
}

TEST(Fields, ARefusalNamesFieldValueAndRange) {
  const std::vector<Field> all = fields().described();
  const auto refused = [&](size_t field, SettingValue value) {
    const auto refusal = all[field].check(value);
    return refusal ? refusal->field + ": " + refusal->value + "; allowed: " + refusal->allowed
                   : std::string();
  };
  EXPECT_EQ(refused(0, 1), "");
  EXPECT_EQ(refused(0, 0), "count: 0; allowed: [1, 1048576]");
  EXPECT_EQ(refused(0, 1.0), "count: 1; allowed: [1, 1048576]");  // a fraction may be lost
  EXPECT_EQ(refused(1, 0.5), "");
  EXPECT_EQ(refused(1, std::numeric_limits<double>::infinity()), "");
  EXPECT_EQ(refused(1, -0.5), "share: -0.5; allowed: [0, inf]");
  EXPECT_EQ(refused(1, std::nan("")), "share: nan; allowed: [0, inf]");
  EXPECT_EQ(refused(1, "x"), "share: x; allowed: [0, inf]");
  EXPECT_EQ(refused(2, 1), "on: 1; allowed: true, false");
  EXPECT_EQ(refused(3, 9), "window: 9; allowed: [1, 8]");
  EXPECT_EQ(refused(4, "SHAPE_CHAIN"), "");
  EXPECT_EQ(refused(4, 7), "shape: 7; allowed: SHAPE_CHAIN, SHAPE_TREE");
  EXPECT_EQ(refused(5, true), "path: true; allowed: a text");
  EXPECT_EQ(refused(6, "w"), "workers: w; allowed: a list of texts");
}

}  // namespace
}  // namespace tandem
