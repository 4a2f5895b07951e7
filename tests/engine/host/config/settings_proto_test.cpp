#include "engine/host/config/settings_proto.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "tandem/config/v1/deployment.pb.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

TEST(SettingsProto, ReadsOnlySetFieldsAndKeepsExplicitZeros) {
  pb::BildDefaults bild;
  EXPECT_EQ(settings_from(bild), Settings());
  bild.set_fallback_threshold(0);
  bild.set_max_small_run(0);
  bild.set_verify_eos(false);
  EXPECT_EQ(settings_from(bild),
            (Settings{{"fallback_threshold", 0.0}, {"max_small_run", 0}, {"verify_eos", false}}));
}

TEST(SettingsProto, EveryKindOfFieldRoundTrips) {
  // Any messages with numbers, strings, enums and nested messages.
  pb::Config config;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(text_threads: 3
         limits { queue_seconds: 0.5 max_waiting_tokens: 5000000000 preemption: PREEMPTION_YOUNGEST }
         server { listen: "x" tls { key: "k" } })",
      &config));
  const Settings settings = settings_from(config);
  EXPECT_EQ(settings, (Settings{{"limits.max_waiting_tokens", int64_t{5'000'000'000}},
                                {"limits.queue_seconds", 0.5},
                                {"limits.preemption", "PREEMPTION_YOUNGEST"},
                                {"server.listen", "x"},
                                {"server.tls.key", "k"},
                                {"text_threads", 3}}));
  pb::Config back;
  put_settings(settings, &back);
  EXPECT_EQ(back.DebugString(), config.DebugString());
}

TEST(SettingsProto, AnEnumsNumberWithoutANameStaysANumber) {
  pb::Limits limits;
  limits.set_preemption(static_cast<pb::Limits::Preemption>(77));
  EXPECT_EQ(settings_from(limits), (Settings{{"preemption", 77}}));
  limits.set_preemption(pb::Limits::PREEMPTION_UNSPECIFIED);
  EXPECT_EQ(settings_from(limits), Settings());
}

TEST(SettingsProto, SettingsWithoutAFieldAreIgnored) {
  pb::BildDefaults bild;
  put_settings({{"window", 3}, {"verify_eos", "yes"}, {"max_small_run", int64_t{1} << 40}}, &bild);
  EXPECT_FALSE(bild.has_verify_eos());
  EXPECT_EQ(bild.max_small_run(), 0x7fffffff);
}

TEST(SettingsProto, MethodsByTheirNames) {
  const auto& type = *pb::Deployment::Method_descriptor();
  EXPECT_EQ(method_number(type, "bild"), pb::Deployment::METHOD_BILD);
  EXPECT_EQ(method_of_number(type, pb::Deployment::METHOD_BILD), "bild");
  EXPECT_EQ(method_number(type, "none"), 0);
  EXPECT_EQ(method_of_number(type, 0), "");
  EXPECT_EQ(method_of_number(type, 99), "");
}

}  // namespace
}  // namespace tandem
