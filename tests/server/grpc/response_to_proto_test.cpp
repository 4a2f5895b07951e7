// Every value of the engine's enums has one of the API's, under the same name.
#include "server/grpc/response_to_proto.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "client/enum_names.h"
#include "engine/base/sampling_params.h"
#include "engine/decode/gen.h"
#include "engine/decode/ppd.h"
#include "server/grpc/proto_enums.h"
#include "server/grpc/request_from_proto.h"

namespace tandem {
namespace {

// `to_proto` of the engine's values from 0 on gives every value of `type` but UNSPECIFIED, once,
// and `name` of each is its short name.
template <class Value, class ToProto, class Name>
void expect_same(const google::protobuf::EnumDescriptor* type, ToProto to_proto, Name name) {
  ASSERT_EQ(short_name(type->FindValueByNumber(0)), "UNSPECIFIED") << type->full_name();
  std::set<int> seen;
  for (int i = 0; i + 1 < type->value_count(); ++i) {
    const auto value = static_cast<Value>(i);
    const auto* const out = type->FindValueByNumber(to_proto(value));
    ASSERT_NE(out, nullptr) << type->full_name() << " " << i;
    EXPECT_NE(out->number(), 0) << type->full_name() << " " << i;
    EXPECT_TRUE(seen.insert(out->number()).second) << out->full_name();
    EXPECT_EQ(short_name(out), absl::AsciiStrToUpper(name(value)));
    EXPECT_EQ(find_value(type, short_name(out)), out);
    EXPECT_EQ(find_value(type, out->name()), out);
  }
}

TEST(ResponseToProto, EveryEnumValueHasItsName) {
  for (int i = 1; i < v1::Method_descriptor()->value_count(); ++i) {
    const auto* const value = v1::Method_descriptor()->value(i);
    EXPECT_EQ(method_to_proto(absl::AsciiStrToLower(short_name(value))), value->number());
  }
  expect_same<Contract>(v1::Contract_descriptor(), contract_to_proto, contract_name);
  expect_same<FinishReason>(v1::FinishReason_descriptor(), finish_reason_to_proto,
                            finish_reason_name);
  expect_same<Source>(v1::Source_descriptor(), source_to_proto, source_name);
  expect_same<Role>(
      v1::PassRole_descriptor(), [](Role role) { return kProtoPassRoles[role]; }, role_name);
  expect_same<PassKind>(
      v1::PassKind_descriptor(), [](PassKind kind) { return kProtoPassKinds[kind]; },
      pass_kind_name);
}

TEST(ResponseToProto, ATraceIsWholeAndOnlyThereIfTheEngineMadeIt) {
  Finished finished;
  finished.method = kAutoregressive;
  EXPECT_FALSE(finished_to_proto(finished, 0).has_trace());
  PassTrace trace;
  trace.omitted = 3;
  trace.passes = {{1, 5'000'000'000, 2, 3, 4, 9, 5, 6, 7, Role::kSmall, PassKind::kDraft}};
  finished.trace = std::make_shared<const PassTrace>(trace);
  const v1::Trace out = finished_to_proto(finished, 0).trace();
  EXPECT_EQ(out.omitted(), 3);
  ASSERT_EQ(out.passes_size(), 1);
  EXPECT_EQ(out.passes(0).ShortDebugString(),
            "pass_number: 2 start_us: 1 end_us: 5000000000 role: PASS_ROLE_SMALL kind: "
            "PASS_KIND_DRAFT rows: 3 batches: 4 batch_rows: 9 batch_requests: 5 accepted: 6 "
            "rejected: 7");
}

// A page builds its forms from these.
TEST(ResponseToProto, ParametersHaveTypesAndBounds) {
  DeploymentInfo info;
  info.default_method = "bild";
  info.methods = {{"bild", Contract::kLossy, Contract::kLossy, {{"fallback_threshold", 0.6}}},
                  {"speculative", Contract::kExact, Contract::kExact, {}}};
  info.sampling.temperature = 0.7;
  const v1::Model model = model_to_proto(info);
  const auto find = [](const auto& list, const std::string& name) {
    for (const v1::Parameter& p : list) {
      if (p.name() == name) return p;
    }
    ADD_FAILURE() << name;
    return v1::Parameter();
  };
  const auto& bild = model.methods(0).parameters();
  const v1::Parameter fallback = find(bild, "fallback_threshold");
  EXPECT_EQ(fallback.type(), v1::PARAMETER_TYPE_NUMBER);
  EXPECT_EQ(fallback.min(), 0);
  EXPECT_EQ(fallback.max(), 2);
  EXPECT_EQ(fallback.default_value(), "0.6");
  EXPECT_FALSE(fallback.meaning().empty());
  const v1::Parameter rollback = find(bild, "rollback_threshold");
  EXPECT_TRUE(rollback.has_min());
  EXPECT_FALSE(rollback.has_max()) << "any value up to infinity";
  EXPECT_EQ(find(bild, "max_small_run").type(), v1::PARAMETER_TYPE_INTEGER);
  const v1::Parameter verify = find(bild, "verify_eos");
  EXPECT_EQ(verify.type(), v1::PARAMETER_TYPE_SWITCH);
  EXPECT_FALSE(verify.has_min() || verify.has_max());
  const v1::Parameter pace = find(model.methods(1).parameters(), "pace");
  EXPECT_EQ(pace.type(), v1::PARAMETER_TYPE_CHOICE);
  EXPECT_EQ(pace.choices(0), "PACE_FIXED");
  ASSERT_EQ(model.sampling_parameters_size(), static_cast<int>(kSamplingParameters.size()));
  const v1::Parameter temperature = find(model.sampling_parameters(), "temperature");
  EXPECT_EQ(temperature.default_value(), "0.7");
  EXPECT_EQ(temperature.max(), 100);
  EXPECT_FALSE(temperature.min_excluded());
  const v1::Parameter top_p = find(model.sampling_parameters(), "top_p");
  EXPECT_TRUE(top_p.min_excluded());
  EXPECT_EQ(top_p.default_value(), "") << "the engine sets all of them";
  EXPECT_EQ(find(model.sampling_parameters(), "top_k").type(), v1::PARAMETER_TYPE_INTEGER);
}

TEST(ResponseToProto, EveryContractRoundTrips) {
  for (const auto contract : {Contract::kAny, Contract::kLossy, Contract::kDistribution,
                              Contract::kExactUpToRounding, Contract::kExact}) {
    v1::GenerateRequest request;
    request.set_model("m");
    request.set_text("p");
    request.set_require_contract(contract_to_proto(contract));
    const auto back = generate_request_from(request);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->require_contract, contract);
  }
}

TEST(ResponseToProto, PpdReportsThePredictionOfTheTheorem) {
  Finished in;
  in.method = "ppd";
  in.usage.completion_tokens = 11;
  auto& own = in.stats.own;
  own[PpdFigures::kRounds] = 10;
  own[PpdFigures::kMatches] = 5;
  own[PpdFigures::kAdopted] = 4;
  own[PpdFigures::kMainLayers] = 8 * 11 - 4 * 4;
  own[PpdFigures::kPredictedMainLayers] = 8 * 11 - 4 * 5;
  own[PpdFigures::kWorkerLayers] = 3 * 4 * 10;
  own[PpdFigures::kCopiedRows] = 14;
  own[PpdFigures::kCopiedBytes] = int64_t{5} << 32;
  own[PpdFigures::kLowerTime] = 1'500'000'000;
  own[PpdFigures::kUpperTime] = 250'000'000;
  own[PpdFigures::kBarrierTime] = 2'000;
  own[PpdFigures::kWorkerTime] = 240'000'000;
  in.stats.tokens_by_index = {3, 0, 2};
  const v1::MethodStats out = finished_to_proto(in, 0).stats();
  EXPECT_DOUBLE_EQ(out.match_rate(), 0.5);
  EXPECT_EQ(out.main_layers(), 72);
  EXPECT_EQ(out.predicted_main_layers(), 68);
  EXPECT_EQ(out.predicted_layers(), 68 + 120);
  EXPECT_EQ(out.copied_rows(), 14);
  EXPECT_EQ(out.copied_bytes(), int64_t{5} << 32) << "more than 32 bits have";
  EXPECT_DOUBLE_EQ(out.lower_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(out.upper_seconds(), 0.25);
  EXPECT_DOUBLE_EQ(out.barrier_seconds(), 2e-6);
  EXPECT_DOUBLE_EQ(out.worker_seconds(), 0.24);
  EXPECT_EQ(std::vector<int>(out.tokens_by_index().begin(), out.tokens_by_index().end()),
            (std::vector<int>{3, 0, 2}));
  in.method = "autoregressive";
  in.stats.tokens_by_index.clear();
  EXPECT_FALSE(finished_to_proto(in, 0).stats().has_predicted_layers());
}

// The prefix that short_name takes away is every value's, in the API and in deployment files.
TEST(ResponseToProto, EveryEnumValueBeginsWithItsEnumsName) {
  const auto upper_snake = [](const std::string& name) {
    std::string out;
    for (const char c : name) {
      if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !out.empty()) out += '_';
      out += absl::ascii_toupper(static_cast<unsigned char>(c));
    }
    return out + "_";
  };
  const auto check = [&](const google::protobuf::EnumDescriptor* type) {
    EXPECT_EQ(type->value(0)->number(), 0);
    EXPECT_EQ(type->value(0)->name(), upper_snake(type->name()) + "UNSPECIFIED");
    for (int i = 0; i < type->value_count(); ++i) {
      EXPECT_EQ(type->value(i)->name().rfind(upper_snake(type->name()), 0), 0U)
          << type->value(i)->full_name();
    }
  };
  for (const char* name : {"tandem/v1/generation.proto", "tandem/v1/models.proto",
                           "tandem/v1/admin.proto", "tandem/config/v1/deployment.proto"}) {
    const auto* const file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(name);
    ASSERT_NE(file, nullptr) << name;
    for (int i = 0; i < file->enum_type_count(); ++i) check(file->enum_type(i));
    for (int m = 0; m < file->message_type_count(); ++m) {
      const auto* const message = file->message_type(m);
      for (int i = 0; i < message->enum_type_count(); ++i) check(message->enum_type(i));
    }
    EXPECT_NE(file->options().go_package(), "") << name;
    EXPECT_NE(file->options().java_package(), "") << name;
    EXPECT_TRUE(file->options().java_multiple_files()) << name;
    EXPECT_NE(file->options().csharp_namespace(), "") << name;
  }
}

TEST(Utf8, IsMadeValid) {
  EXPECT_EQ(to_valid_utf8("aé"), "aé");
  EXPECT_EQ(to_valid_utf8("a\xff"), "a\xEF\xBF\xBD");
  EXPECT_EQ(to_valid_utf8("\xc3"), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tandem
