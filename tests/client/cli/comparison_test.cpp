#include "client/cli/comparison.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

Compared one(const std::string& method, const std::vector<std::string>& words, double seconds) {
  Compared out{method, Answer()};
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

TEST(Comparison, SpeedsAreBesideTheFirst) {
  const std::vector<Compared> all = {one("autoregressive", {"a", "b", "c"}, 4),
                                     one("bild", {"a", "b", "c"}, 2)};
  const std::string table = comparison_table(all);
  EXPECT_NE(table.find("autoregressive  EXACT     3       2"), std::string::npos) << table;
  EXPECT_NE(table.find("0.5     1.00   EOS"), std::string::npos) << table;
  EXPECT_NE(table.find("1.0     2.00   EOS"), std::string::npos) << table;
  const Json json = comparison_json(all);
  EXPECT_EQ(json["prompt_tokens"], 3);
  EXPECT_EQ(json["answers"][1]["asked"], "bild");
  EXPECT_EQ(json["answers"][1]["same"], true);
  EXPECT_DOUBLE_EQ(json["answers"][1]["speed_up"], 2);
}

TEST(Comparison, SaysWhatDiffers) {
  const Json json = comparison_json({one("a", {"x"}, 1), one("b", {"y"}, 0)});
  EXPECT_EQ(json["answers"][1]["same"], false);
  EXPECT_EQ(json["answers"][1]["speed_up"], 0) << "nothing was measured";
}

TEST(Comparison, TokensWithoutTextsAreTheirIds) {
  Answer answer;
  v1::GenerateResponse event;
  event.mutable_chunk()->add_tokens()->set_id(7);
  answer.add(event);
  EXPECT_EQ(pieces_of(answer), (std::vector<std::string>{"7 "}));
}

}  // namespace
}  // namespace tandem::cli
