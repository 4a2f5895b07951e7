#include "engine/sampling/params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/processors.h"
#include "engine/sampling/warp.h"

namespace tandem::sampling {
namespace {

using Params = SamplingParams;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

void expect_refused(const absl::Status& status, const std::string& field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()).rfind(field + ": ", 0), 0u) << status;
}

constexpr int kVocab = 50;

absl::Status validate(double temperature, double top_k, double top_p, double min_p) {
  Params p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  return sampling::validate(p, kVocab);
}

absl::Status validate(std::optional<double> Params::* field, double value) {
  Params p;
  p.*field = value;
  return sampling::validate(p, kVocab);
}

TEST(Params, Ranges) {
  EXPECT_TRUE(validate(0, 0, 1, 0).ok());
  EXPECT_TRUE(validate(100, 2147483647, 1e-9, 1).ok());
  EXPECT_TRUE(validate(0.7, 50, 0.9, 0.05).ok());
  for (const double x : {-1e-9, 100.1, kNan, kInf, -kInf}) {
    expect_refused(validate(x, 0, 1, 0), "temperature");
  }
  for (const double x : {-1.0, 2147483648.0, 1.5, kNan, kInf}) {
    expect_refused(validate(1, x, 1, 0), "top_k");
  }
  for (const double x : {0.0, -0.5, 1.0001, kNan, kInf}) {
    expect_refused(validate(1, 0, x, 0), "top_p");
  }
  for (const double x : {-0.1, 1.1, kNan, -kInf}) expect_refused(validate(1, 0, 1, x), "min_p");
}

TEST(Params, RangesOfProcessors) {
  const struct {
    const char* name;
    std::optional<double> Params::* field;
    std::vector<double> good, bad;
  } cases[] = {
      {"typical_p", &Params::typical_p, {1e-9, 0.5, 1}, {0, -0.1, 1.001, kNan, kInf}},
      {"repetition_penalty",
       &Params::repetition_penalty,
       {0.01, 1, 1.3, 100},
       {0, 0.009, -1, 100.1, kNan, kInf}},
      {"presence_penalty", &Params::presence_penalty, {-2, 0, 2}, {-2.1, 2.1, kNan, -kInf}},
      {"frequency_penalty", &Params::frequency_penalty, {-2, 0, 2}, {-2.1, 2.1, kNan, kInf}},
  };
  for (const auto& c : cases) {
    for (const double x : c.good) EXPECT_TRUE(validate(c.field, x).ok()) << c.name << " " << x;
    for (const double x : c.bad) expect_refused(validate(c.field, x), c.name);
  }
}

TEST(Params, BiasAndBans) {
  const auto bias = [](std::vector<std::pair<int64_t, double>> entries) {
    Params p;
    p.logit_bias = std::move(entries);
    return sampling::validate(p, kVocab);
  };
  EXPECT_TRUE(bias({{0, -100}, {49, 100}, {7, 0}}).ok());
  EXPECT_EQ(bias({{50, 1}}).message(), "logit_bias: 50; allowed: 0 to 49");
  EXPECT_EQ(bias({{-1, 1}}).message(), "logit_bias: -1; allowed: 0 to 49");
  EXPECT_EQ(bias({{int64_t{1} << 32, 1}}).message(), "logit_bias: 4294967296; allowed: 0 to 49");
  EXPECT_EQ(bias({{3, 100.5}}).message(), "logit_bias[3]: 100.5; allowed: [-100, 100]");
  EXPECT_EQ(bias({{3, -kInf}}).message(), "logit_bias[3]: -inf; allowed: [-100, 100]");
  expect_refused(bias({{3, kNan}}), "logit_bias[3]");
  EXPECT_EQ(bias({{3, 1}, {3, 2}}).message(),
            "logit_bias: token 3 twice; allowed: one entry a token");
  Params p;
  p.bad_token_ids = {0, 49, 0};
  EXPECT_TRUE(sampling::validate(p, kVocab).ok());
  p.bad_token_ids = {50};
  EXPECT_EQ(sampling::validate(p, kVocab).message(), "bad_token_ids: 50; allowed: 0 to 49");
}

TEST(Params, BecomeProcessors) {
  Params p;
  EXPECT_EQ(processors_of(p), Processors());
  p.repetition_penalty = 1.5;
  p.presence_penalty = -0.5;
  p.frequency_penalty = 0.25;
  p.logit_bias = {{9, 1.5}, {4, -2}, {5, 0}, {6, 3}};
  p.bad_token_ids = {6, 2, 2};
  const Processors out = processors_of(p);
  EXPECT_EQ(out.repetition_penalty, 1.5f);
  EXPECT_EQ(out.presence_penalty, -0.5f);
  EXPECT_EQ(out.frequency_penalty, 0.25f);
  const auto banned = static_cast<float>(-kInf);  // a ban is stronger than a bias
  const std::vector<std::pair<Token, float>> bias = {{2, banned}, {4, -2}, {6, banned}, {9, 1.5f}};
  EXPECT_EQ(out.bias, bias);
}

TEST(Params, BansMustLeaveAToken) {
  Processors p;
  const auto banned = static_cast<float>(-kInf);
  p.bias = {{0, banned}, {1, banned}, {2, -100}};
  EXPECT_TRUE(check_bans(p, 3).ok());
  p.ends = {2};
  EXPECT_TRUE(check_bans(p, 3).ok());
  p.min_new_tokens = 1;
  EXPECT_EQ(check_bans(p, 3).message(),
            "min_new_tokens: 1; allowed: 0 where bad_token_ids and what ends a text are the whole "
            "vocabulary");
  EXPECT_TRUE(check_bans(p, 4).ok());
  p.bias[2].second = banned;
  EXPECT_EQ(check_bans(p, 3).message(),
            "bad_token_ids: all 3 tokens of the vocabulary; allowed: at least one token is left");
}

TEST(Params, EveryRowReachesThePass) {
  EXPECT_TRUE(sampling::validate({}, kVocab).ok()) << "unset fields are valid";
  EXPECT_EQ(warp_of({}), Warp());
  EXPECT_EQ(processors_of({}), Processors());
  for (const SamplingParameter& row : kSamplingParameters) {
    EXPECT_EQ(find_sampling_parameter(row.name), &row);
    Params p;
    p.*row.member = row.off;
    EXPECT_EQ(warp_of(p), Warp()) << row.name << ": off is not Warp's default";
    EXPECT_EQ(processors_of(p), Processors()) << row.name << ": off is not Processors' default";
    p.*row.member = row.off == row.max ? (row.min + row.max) / 2 : row.max;
    EXPECT_EQ(warp_of(p) != Warp(), row.warper) << row.name;
    EXPECT_EQ(processors_of(p) != Processors(), !row.warper) << row.name;
  }
  EXPECT_EQ(find_sampling_parameter("seed"), nullptr);
}

TEST(Params, MessageNamesFieldValueAndRange) {
  EXPECT_EQ(validate(-2, 0, 1, 0).message(), "temperature: -2; allowed: [0, 100]");
  EXPECT_EQ(validate(1, 0, 0, 0).message(), "top_p: 0; allowed: (0, 1]");
}

}  // namespace
}  // namespace tandem::sampling
