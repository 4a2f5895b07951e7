#include "server/observe/call_spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "server/edge/traceparent.h"

namespace tandem {
namespace {

using opentelemetry::proto::trace::v1::Span;
using opentelemetry::proto::trace::v1::Status;
using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr TimePoint kArrived{std::chrono::seconds(100)};
constexpr Duration kUnix = std::chrono::hours(1000);

std::vector<ModelInDeployment> pair(const std::string& deployment) {
  if (deployment != "pair") return {};
  std::vector<ModelInDeployment> out(2);
  out[0].role = "large";
  out[0].name = "big";
  out[0].device = "cpu:0";
  out[1].role = "small";
  out[1].name = "little";
  out[1].device = "cpu:1";
  return out;
}

// 10 ms of reading, 40 in the queue, 50 to the first token, 100 to the end, 5 until it was said.
EndedCall finished_call() {
  EndedCall call;
  call.info.method = "Generate";
  call.info.request_id = "r";
  call.info.client = "ann";
  call.info.traceparent = kParent;
  call.info.arrived = kArrived;
  call.summary.model = "pair";
  call.summary.reason = FinishReason::kEos;
  call.summary.prompt_tokens = 7;
  call.summary.completion_tokens = 9;
  call.summary.reached_engine = true;
  call.summary.work = {"bild", 0.04, 0.05, 0.1, 3, 12, 0.06, 0.03, kArrived + milliseconds(200)};
  call.ended = kArrived + milliseconds(205);
  return call;
}

std::vector<Span> spans_of(const EndedCall& call, double ratio = 1, uint64_t seed = 1) {
  return CallSpans(ratio, pair, seed).of(call, kUnix);
}

std::vector<std::string> names_of(const std::vector<Span>& spans) {
  std::vector<std::string> out;
  for (const Span& span : spans) out.push_back(span.name());
  return out;
}

std::map<std::string, std::string> attributes_of(const Span& span) {
  std::map<std::string, std::string> out;
  for (const auto& attribute : span.attributes()) {
    out[attribute.key()] = attribute.value().ShortDebugString();
  }
  return out;
}

// Milliseconds since the call arrived.
std::pair<int64_t, int64_t> interval_of(const Span& span) {
  const auto since = [](uint64_t unix) {
    return std::chrono::round<milliseconds>(Duration(static_cast<int64_t>(unix)) - kUnix -
                                            kArrived.time_since_epoch())
        .count();
  };
  return {since(span.start_time_unix_nano()), since(span.end_time_unix_nano())};
}

TEST(CallSpans, ReportWhereTheTimeWent) {
  const std::vector<Span> spans = spans_of(finished_call());
  EXPECT_THAT(names_of(spans), ElementsAre("tandem.v1.Generation/Generate", "queue", "prefill",
                                           "decode", "large", "small"));
  EXPECT_EQ(interval_of(spans[0]), std::pair(int64_t{0}, int64_t{205}));
  EXPECT_EQ(interval_of(spans[1]), std::pair(int64_t{10}, int64_t{50}));
  EXPECT_EQ(interval_of(spans[2]), std::pair(int64_t{50}, int64_t{100}));
  EXPECT_EQ(interval_of(spans[3]), std::pair(int64_t{100}, int64_t{200}));
  EXPECT_EQ(interval_of(spans[4]), std::pair(int64_t{50}, int64_t{200}));
  EXPECT_EQ(spans[0].kind(), Span::SPAN_KIND_SERVER);
  EXPECT_EQ(spans[0].status().code(), Status::STATUS_CODE_UNSET);
  auto large = attributes_of(spans[4]);
  EXPECT_EQ(large["tandem.model"], "string_value: \"big\"");
  EXPECT_EQ(large["tandem.device"], "string_value: \"cpu:0\"");
  EXPECT_EQ(large["tandem.passes"], "int_value: 3");
  EXPECT_EQ(large["tandem.pass_seconds"], "double_value: 0.06");
  EXPECT_EQ(attributes_of(spans[5])["tandem.passes"], "int_value: 12");
}

TEST(CallSpans, BelongToTheCallersTrace) {
  const std::vector<Span> spans = spans_of(finished_call());
  const auto parent = parse_traceparent(kParent);
  EXPECT_EQ(spans[0].parent_span_id(), parent->span_id);
  std::set<std::string> ids;
  for (const Span& span : spans) {
    EXPECT_EQ(span.trace_id(), parent->trace_id);
    EXPECT_EQ(span.span_id().size(), 8u);
    ids.insert(span.span_id());
    if (&span != &spans[0]) {
      EXPECT_EQ(span.parent_span_id(), spans[0].span_id());
      EXPECT_EQ(span.kind(), Span::SPAN_KIND_INTERNAL);
    }
  }
  EXPECT_EQ(ids.size(), spans.size());
}

TEST(CallSpans, RecordTheRequestAndItsEnd) {
  auto attributes = attributes_of(spans_of(finished_call())[0]);
  EXPECT_EQ(attributes["rpc.system"], "string_value: \"grpc\"");
  EXPECT_EQ(attributes["rpc.service"], "string_value: \"tandem.v1.Generation\"");
  EXPECT_EQ(attributes["rpc.method"], "string_value: \"Generate\"");
  EXPECT_EQ(attributes["rpc.grpc.status_code"], "int_value: 0");
  EXPECT_EQ(attributes["tandem.status"], "string_value: \"OK\"");
  EXPECT_EQ(attributes["tandem.request_id"], "string_value: \"r\"");
  EXPECT_EQ(attributes["tandem.client"], "string_value: \"ann\"");
  EXPECT_EQ(attributes["tandem.method"], "string_value: \"bild\"");
  EXPECT_EQ(attributes["gen_ai.request.model"], "string_value: \"pair\"");
  EXPECT_EQ(attributes["gen_ai.usage.input_tokens"], "int_value: 7");
  EXPECT_EQ(attributes["gen_ai.usage.output_tokens"], "int_value: 9");
  EXPECT_THAT(attributes["gen_ai.response.finish_reasons"], testing::HasSubstr("\"EOS\""));
}

TEST(CallSpans, OfTheHttpApi) {
  EndedCall call = finished_call();
  call.info.method = "openai/chat/completions";
  Span span = spans_of(call)[0];
  EXPECT_EQ(span.name(), "POST /v1/chat/completions");
  EXPECT_EQ(attributes_of(span)["http.route"], "string_value: \"/v1/chat/completions\"");
  EXPECT_EQ(attributes_of(span).count("rpc.system"), 0u);
  call.info.method = "openai/models";
  EXPECT_EQ(spans_of(call)[0].name(), "GET /v1/models");
}

TEST(CallSpans, OfACallThatFailed) {
  EndedCall call = finished_call();
  call.summary = {};
  call.summary.model = std::string(5000, 'x');  // that no model has
  for (const auto& [code, is_error] : {std::pair(absl::StatusCode::kInvalidArgument, false),
                                       std::pair(absl::StatusCode::kCancelled, false),
                                       std::pair(absl::StatusCode::kUnavailable, true),
                                       std::pair(absl::StatusCode::kInternal, true)}) {
    call.code = code;
    const std::vector<Span> spans = spans_of(call);
    ASSERT_EQ(spans.size(), 1u);
    EXPECT_EQ(spans[0].status().code() == Status::STATUS_CODE_ERROR, is_error);
    EXPECT_EQ(attributes_of(spans[0]).count("gen_ai.request.model"), 0u);
  }
}

TEST(CallSpans, NothingBeginsBeforeTheCall) {
  EndedCall call = finished_call();
  call.summary.work.queue_seconds = 99;  // clocks are read at different times
  for (const Span& span : spans_of(call)) EXPECT_GE(interval_of(span).first, 0);
}

TEST(CallSpans, TheCallerDecidesForItsTraces) {
  EndedCall call = finished_call();
  EXPECT_EQ(spans_of(call, /*ratio=*/0).size(), 6u);
  call.info.traceparent.back() = '0';
  EXPECT_TRUE(spans_of(call).empty());
}

TEST(CallSpans, AShareOfOtherTracesIsKept) {
  EndedCall call = finished_call();
  call.info.traceparent.clear();
  CallSpans some(0.25, pair, /*seed=*/7);
  int kept = 0;
  std::set<std::string> traces;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<Span> spans = some.of(call, kUnix);
    if (spans.empty()) continue;
    ++kept;
    EXPECT_EQ(spans[0].parent_span_id(), "");
    traces.insert(spans[0].trace_id());
  }
  EXPECT_NEAR(kept, 500, 60);
  EXPECT_EQ(traces.size(), static_cast<size_t>(kept));
  EXPECT_TRUE(spans_of(call, 0).empty());
  EXPECT_EQ(spans_of(call, 1).size(), 6u);
}

}  // namespace
}  // namespace tandem
