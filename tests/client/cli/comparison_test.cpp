#include "client/cli/comparison.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

Compared one(const std::string& method, const std::vector<std::string>& words, double seconds) {
  Compared out{method, Answer(), absl::OkStatus()};
  v1::GenerateResponse event;
  event.mutable_started()->set_contract(v1::CONTRACT_EXACT);
  event.mutable_started()->set_prompt_tokens(3);
  out.answer.add(event);
  event.Clear();
  for (const std::string& word : words) {
    event.mutable_chunk()->add_tokens()->set_text(word);
    event.mutable_chunk()->mutable_text()->append(word);
  }
  out.answer.add(event);
  event.Clear();
  v1::Finished* const finished = event.mutable_finished();
  finished->set_finish_reason(v1::FINISH_REASON_EOS);
  finished->mutable_usage()->set_completion_tokens(static_cast<int>(words.size()));
  finished->mutable_stats()->set_large_passes(2);
  finished->mutable_stats()->set_decode_seconds(seconds);
  out.answer.add(event);
  return out;
}

TEST(Comparison, SpeedUpsAreRelativeToTheFirst) {
  const std::vector<Compared> all = {one("autoregressive", {"a", "b", "c"}, 4),
                                     one("bild", {"a", "b", "c"}, 2)};
  const std::string table = comparison_table(all);
  EXPECT_NE(table.find("autoregressive  EXACT     3       2"), std::string::npos) << table;
  EXPECT_NE(table.find("0.5           1.00      EOS"), std::string::npos) << table;
  EXPECT_NE(table.find("1.0           2.00      EOS"), std::string::npos) << table;
  const Json json = comparison_json(all);
  EXPECT_EQ(json["prompt_tokens"], 3);
  EXPECT_EQ(json["answers"][1]["requested_method"], "bild");
  EXPECT_EQ(json["answers"][1]["same"], true);
  EXPECT_DOUBLE_EQ(json["answers"][1]["speed_up"], 2);
}

TEST(Comparison, ReportsDifferences) {
  const Json json = comparison_json({one("a", {"x"}, 1), one("b", {"y"}, 0)});
  EXPECT_EQ(json["answers"][1]["same"], false);
  EXPECT_EQ(json["answers"][1]["speed_up"], 0) << "nothing was measured";
}

TEST(Comparison, AMethodThatFailedHasItsStatus) {
  Compared failed{"bita", Answer(), absl::InvalidArgumentError("method: not offered")};
  const std::vector<Compared> all = {failed, one("autoregressive", {"a", "b"}, 2),
                                     one("bild", {"a", "b"}, 1)};
  const std::string table = comparison_table(all);
  EXPECT_NE(table.find("bita            INVALID_ARGUMENT\n"), std::string::npos) << table;
  EXPECT_NE(table.find("1.0           2.00      EOS"), std::string::npos)
      << "against the first success";
  const Json json = comparison_json(all);
  EXPECT_EQ(json["prompt_tokens"], 3);
  EXPECT_EQ(json["answers"][0]["requested_method"], "bita");
  EXPECT_EQ(json["answers"][0]["error"]["status"], "INVALID_ARGUMENT");
  EXPECT_EQ(json["answers"][0]["error"]["message"], "method: not offered");
  EXPECT_EQ(json["answers"][2]["same"], true);
}

TEST(Comparison, WorksWhereAllFailed) {
  const std::vector<Compared> all = {{"bild", Answer(), absl::UnavailableError("gone")}};
  EXPECT_NE(comparison_table(all).find("bild    UNAVAILABLE\n"), std::string::npos);
  EXPECT_EQ(comparison_json(all)["prompt_tokens"], 0);
}

TEST(Comparison, ATokenWithoutTextIsItsId) {
  Answer answer;
  v1::GenerateResponse event;
  event.mutable_chunk()->add_tokens()->set_id(7);
  answer.add(event);
  EXPECT_EQ(pieces_of(answer), (std::vector<std::string>{"7 "}));
}

}  // namespace
}  // namespace tandem::cli
