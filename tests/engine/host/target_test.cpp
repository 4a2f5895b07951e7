// The names of deployments and adapters in requests.
#include "engine/host/target.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace tandem {
namespace {

DeploymentRef deployment(const std::string& name, const std::vector<std::string>& adapters) {
  const auto d = std::make_shared<Deployment>();
  d->name = name;
  for (const std::string& adapter : adapters) d->adapters->pin({.name = adapter});
  return d;
}

class Targets : public ::testing::Test {
 protected:
  Targets() {
    all_.push_back(deployment("code", {"sql", "law"}));
    all_.push_back(deployment("pair", {"law", "org/fast"}));
    all_.push_back(deployment("plain", {}));
  }

  // "DEPLOYMENT ADAPTER" or the error.
  std::string of(const std::string& model, const std::string& adapter = "") const {
    const auto target = find_target(all_, model, adapter);
    if (!target.ok()) return std::string(target.status().message());
    return target->deployment->name + " " + (target->adapter ? target->adapter->name : "-");
  }
  std::string reason(const std::string& model, const std::string& adapter = "") const {
    const absl::Status status = find_target(all_, model, adapter).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    return std::string(status.GetPayload(kReasonPayload).value_or(absl::Cord()));
  }

  DeploymentTable all_;
};

TEST_F(Targets, EachFormNamesTheSameAdapter) {
  EXPECT_EQ(of("code"), "code -");
  EXPECT_EQ(of("code", "sql"), "code sql");
  EXPECT_EQ(of("code:sql"), "code sql");
  EXPECT_EQ(of("sql"), "code sql");
  EXPECT_EQ(of("pair:law"), "pair law");
  EXPECT_EQ(of("pair:org/fast"), "pair org/fast");
  EXPECT_EQ(of("org/fast"), "pair org/fast");
  EXPECT_EQ(of("plain"), "plain -");
}

TEST_F(Targets, BothFormsMayNameOneAdapter) {
  EXPECT_EQ(of("code:sql", "sql"), "code sql");
  EXPECT_EQ(of("sql", "sql"), "code sql");
  EXPECT_EQ(of("code:sql", "law"), "adapter: \"law\"; allowed: unset, or \"sql\" as in model");
  EXPECT_EQ(find_target(all_, "sql", "law").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Targets, AnAdapterOfSeveralDeploymentsNeedsOneOfThem) {
  EXPECT_EQ(of("law"),
            "model: \"law\", an adapter of several deployments; known: \"code:law\", \"pair:law\"");
  EXPECT_EQ(reason("law"), "MODEL_NOT_FOUND");
}

TEST_F(Targets, UnknownNamesAreAnsweredWithTheKnownOnes) {
  const std::string known =
      "known: \"code\", \"pair\", \"plain\", \"code:sql\", \"code:law\", \"pair:law\", "
      "\"pair:org/fast\"";
  EXPECT_EQ(of("zzzzzzzz"), "model: \"zzzzzzzz\"; " + known);
  EXPECT_EQ(of("code:sqk"), "model: \"code:sqk\"; did you mean \"code:sql\"? " + known);
  EXPECT_EQ(of("code:"), "model: \"code:\"; did you mean \"code\"? " + known);
  EXPECT_EQ(of(":sql"), "model: \":sql\"; " + known);
  EXPECT_EQ(of("pair:law:x").substr(0, 20), "model: \"pair:law:x\";");
  EXPECT_EQ(reason("code:sqk"), "MODEL_NOT_FOUND");
  EXPECT_EQ(of("code", "slq"), "adapter: \"slq\"; did you mean \"sql\"? known: \"sql\", \"law\"");
  EXPECT_EQ(of("plain", "x"), "adapter: \"x\"; known: none");
  EXPECT_EQ(reason("code", "slq"), "ADAPTER_NOT_FOUND");
}

TEST(Target, WithoutAdaptersOnlyDeploymentsAreListed) {
  DeploymentTable all;
  all.push_back(deployment("a", {}));
  all.push_back(deployment("b", {}));
  EXPECT_EQ(find_target(all, "nope").status().message(), "model: \"nope\"; known: \"a\", \"b\"");
}

}  // namespace
}  // namespace tandem
