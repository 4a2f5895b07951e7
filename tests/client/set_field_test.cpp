#include "client/set_field.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tandem/v1/generation.pb.h"

namespace tandem {
namespace {

v1::GenerateRequest with(const std::vector<std::string>& assignments) {
  v1::GenerateRequest request;
  for (const std::string& assignment : assignments) {
    const absl::Status status = set_field(&request, assignment);
    EXPECT_TRUE(status.ok()) << assignment << ": " << status;
  }
  return request;
}

std::string error(const std::string& assignment) {
  v1::GenerateRequest request;
  const absl::Status status = set_field(&request, assignment);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << assignment;
  return std::string(status.message());
}

TEST(SetField, ReachesEveryKindOfField) {
  const auto r = with({"temperature=0.5", "seed=18446744073709551615", "ignore_eos=true",
                       "require_contract=EXACT", "model=a=b", "bild.rollback_threshold=inf",
                       "stop_token_ids=1,2", "stop_token_ids=3", "stop_sequences=a,b",
                       "logit_bias.5=1.5", "logit_bias.6=-1", "beam.width=4"});
  EXPECT_EQ(r.temperature(), 0.5);
  EXPECT_EQ(r.seed(), 18446744073709551615u);
  EXPECT_TRUE(r.ignore_eos());
  EXPECT_EQ(r.require_contract(), v1::CONTRACT_EXACT);
  EXPECT_EQ(r.model(), "a=b");
  EXPECT_TRUE(std::isinf(r.bild().rollback_threshold()));
  EXPECT_EQ(std::vector<int>(r.stop_token_ids().begin(), r.stop_token_ids().end()),
            (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(r.stop_sequences(0), "a,b");
  EXPECT_EQ(r.logit_bias().at(5), 1.5);
  EXPECT_EQ(r.logit_bias().at(6), -1);
  EXPECT_EQ(r.beam().width(), 4);
}

TEST(SetField, AZeroIsSet) {
  EXPECT_TRUE(with({"temperature=0"}).has_temperature());
  EXPECT_FALSE(with({}).has_temperature());
}

TEST(SetField, OneofsKeepTheLast) {
  const auto r = with({"speculative.draft_tokens=3", "bita.num_masks=2"});
  EXPECT_EQ(r.method_case(), v1::GenerateRequest::kBita);
}

TEST(SetField, NestedEnums) {
  EXPECT_EQ(with({"bita.tree=CHAIN"}).bita().tree(), v1::Bita::TREE_CHAIN);
}

TEST(SetField, RepeatedMessagesByIndex) {
  const auto r = with({"chat.messages[0].role=user", "chat.messages[0].content=a.b=c",
                       "chat.messages[1].role=assistant"});
  ASSERT_EQ(r.chat().messages_size(), 2);
  EXPECT_EQ(r.chat().messages(0).content(), "a.b=c");
  EXPECT_EQ(r.chat().messages(1).role(), "assistant");
}

TEST(SetField, WholeMessagesInTextFormat) {
  const auto r = with({"bild={rollback_threshold: 0.69 window: 3}", "auto="});
  EXPECT_EQ(r.method_case(), v1::GenerateRequest::kAuto);
  EXPECT_EQ(with({"bild={window: 3}"}).bild().window(), 3);
}

TEST(SetField, ErrorsNamePathValueAndAllowed) {
  EXPECT_EQ(error("temperature"), "--set: \"temperature\"; allowed: FIELD=VALUE");
  EXPECT_EQ(error("top_k=1.5"), "top_k: \"1.5\"; allowed: a 32-bit integer");
  EXPECT_EQ(error("top_k=2147483648"), "top_k: \"2147483648\"; allowed: a 32-bit integer");
  EXPECT_EQ(error("seed=-1"), "seed: \"-1\"; allowed: an unsigned 64-bit integer");
  EXPECT_EQ(error("temperature=hot"), "temperature: \"hot\"; allowed: a number");
  EXPECT_EQ(error("logprobs=maybe"), "logprobs: \"maybe\"; allowed: true, false");
  EXPECT_EQ(error("require_contract=BEST"),
            "require_contract: \"BEST\"; allowed: ANY, LOSSY, DISTRIBUTION, EXACT, "
            "EXACT_UP_TO_ROUNDING");
  EXPECT_EQ(error("ppd.layer=1"),
            "ppd.layer: no field \"layer\" in tandem.v1.Ppd; allowed: num_candidates, "
            "draft_vocabulary");
  EXPECT_EQ(error("chat.messages[2].role=x"),
            "chat.messages[2].role: 2; allowed: [0, 0] (one more than there are)");
  EXPECT_EQ(error("chat.messages.role=x"),
            "chat.messages.role: \"messages\" is repeated: FIELD[INDEX].FIELD");
  EXPECT_EQ(error("seed.x=1"), "seed.x: \"seed\" is not a message");
  EXPECT_EQ(error("bild[0].window=1"), "bild[0].window: \"bild\" is not a message");
  EXPECT_NE(error("bild={windo: 1}").find("text format of tandem.v1.Bild"), std::string::npos);
}

}  // namespace
}  // namespace tandem
