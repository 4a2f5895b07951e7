// Requests from the wire: bytes as protobuf ('w' before them), as text format ('t'), or made field
// by field of edge values. What is taken is within the ranges that the API names; what is refused
// is the client's fault and quotes no prompt.
#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/host/methods/registry.h"
#include "server/grpc/request_from_proto.h"
#include "server/grpc/wire_scan.h"
#include "tests/fuzz/fuzz.h"

namespace tandem {
namespace {

using fuzz::check;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kCanary[] = "CANARY";

template <class Number>
Number edge(FuzzedDataProvider& in) {
  using Limits = std::numeric_limits<Number>;
  if (in.ConsumeBool()) return static_cast<Number>(in.ConsumeIntegralInRange<int>(-3, 66));
  return in.PickValueInArray<Number>({Limits::lowest(), Limits::max(), 0, 1, 100, 101, 4096, 4097,
                                      static_cast<Number>(0.5), static_cast<Number>(1e9)});
}

double edge_double(FuzzedDataProvider& in) {
  using Limits = std::numeric_limits<double>;
  if (in.ConsumeBool()) return in.ConsumeFloatingPointInRange<double>(-2.5, 2.5);
  return in.PickValueInArray({Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), -0.0,
                              Limits::denorm_min(), -Limits::denorm_min(), Limits::max(),
                              Limits::lowest(), 1.0, 86400.0, 86400.5, 1e-9});
}

std::string edge_string(FuzzedDataProvider& in) {
  if (in.ConsumeBool()) return in.ConsumeRandomLengthString(16);
  const std::string some[] = {
      "",   "m",    "{}",      "{\"a\": 1}", " {\"role\": \"x\"} ",  "{",
      "[]", "{}{}", "{\"a\":", "user",       std::string(1025, 's'), "\xC3\xA9"};
  return some[in.ConsumeIntegralInRange<size_t>(0, std::size(some) - 1)];
}

void fill(Message* message, FuzzedDataProvider& in, int depth);

void fill(Message* message, const FieldDescriptor* field, FuzzedDataProvider& in, int depth) {
  const auto* reflection = message->GetReflection();
  const bool many = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth < 4) {
        fill(many ? reflection->AddMessage(message, field)
                  : reflection->MutableMessage(message, field),
             in, depth + 1);
      }
      return;
    case FieldDescriptor::CPPTYPE_STRING:
      return many ? reflection->AddString(message, field, edge_string(in))
                  : reflection->SetString(message, field, edge_string(in));
    case FieldDescriptor::CPPTYPE_INT32:
      return many ? reflection->AddInt32(message, field, edge<int32_t>(in))
                  : reflection->SetInt32(message, field, edge<int32_t>(in));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(message, field, in.ConsumeIntegral<uint64_t>());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(message, field, edge_double(in));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(message, field, in.ConsumeBool());
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(message, field, in.ConsumeIntegralInRange<int>(-1, 9));
    default:
      check(false, "a field of a new type", field->full_name());
  }
}

void fill(Message* message, FuzzedDataProvider& in, int depth) {
  const auto* descriptor = message->GetDescriptor();
  if (descriptor->field_count() == 0) return;
  for (int n = in.ConsumeIntegralInRange<int>(0, 8); n > 0; --n) {
    const int i = in.ConsumeIntegralInRange<int>(0, descriptor->field_count() - 1);
    const FieldDescriptor* field = descriptor->field(i);
    if (!field->is_map()) fill(message, field, in, depth);
  }
}

// Whatever the input was, prompts are known again where they must not be.
void mark(v1::Chat* chat) {
  for (v1::ChatMessage& m : *chat->mutable_messages()) m.set_content(kCanary + m.content());
}
template <class Request>
void mark_prompt(Request* request) {
  if (request->has_text() && !request->text().empty()) request->set_text(kCanary + request->text());
  if (request->has_chat()) mark(request->mutable_chat());
}

class Quiet final : public google::protobuf::io::ErrorCollector {
  void AddError(int /*line*/, int /*column*/, const std::string& /*message*/) override {}
};

// The scan of the bytes bounds the memory of what is parsed, and refuses as the client's fault.
void check_scan(const std::string& bytes, const Message& message, bool parsed) {
  google::protobuf::io::ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()),
                                            /*block_size=*/7);
  const auto bound =
      scan_message(&in, static_cast<int64_t>(bytes.size()), *message.GetDescriptor());
  if (!bound.ok()) return fuzz::check_refusal(bound.status());
  check(!parsed || *bound >= static_cast<int64_t>(message.SpaceUsedLong()),
        "the memory of a message");
}

template <class Request>
Request make(const uint8_t* data, size_t size) {
  Request request;
  const std::string rest = size > 0 ? fuzz::text_of(data + 1, size - 1) : "";
  if (size > 0 && data[0] == 'w') {
    const bool parsed = request.ParseFromString(rest);
    check_scan(rest, request, parsed);
    if (!parsed) request.Clear();
  } else if (size > 0 && data[0] == 't') {
    google::protobuf::TextFormat::Parser parser;
    Quiet quiet;
    parser.RecordErrorsTo(&quiet);
    if (!parser.ParseFromString(rest, &request)) request.Clear();
  } else {
    FuzzedDataProvider in(data, size);
    if (in.ConsumeIntegralInRange<int>(0, 9) > 0) {  // so that most come past what all need
      request.set_model("m");
      request.set_text("p");
    }
    fill(&request, in, 0);
  }
  // libFuzzer finds the word by itself.
  if (request.SerializeAsString().find(kCanary) != std::string::npos) request.Clear();
  mark_prompt(&request);
  // As it comes through gRPC: strings that are no UTF-8 do not.
  static const bool quiet = (google::protobuf::SetLogHandler(nullptr), true);
  (void)quiet;
  Request received;
  if (!received.ParseFromString(request.SerializeAsString())) received.Clear();
  return received;
}

void check_refused(const absl::Status& status) {
  fuzz::check_refusal(status);
  check(status.message().find(kCanary) == absl::string_view::npos, "a prompt in an error",
        status.ToString());
}

template <class Number>
void check_range(const std::optional<Number>& value, double low, double high, const char* what) {
  if (value) check(static_cast<double>(*value) >= low && static_cast<double>(*value) <= high, what);
}

void check_prompt(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) check(!text->empty(), "text");
  const auto* chat = std::get_if<ChatPrompt>(&prompt);
  if (!chat) return;
  const auto messages = nlohmann::json::parse(chat->messages_json, nullptr, false);
  check(messages.is_array() && !messages.empty(), "messages", chat->messages_json);
  for (const auto& m : messages) check(m.is_object() && m.contains("role"), "message");
  if (!chat->tools_json.empty()) {
    const auto tools = nlohmann::json::parse(chat->tools_json, nullptr, false);
    check(tools.is_array(), "tools", chat->tools_json);
    for (const auto& tool : tools) check(tool.is_object(), "tool");
  }
  if (!chat->template_args_json.empty()) {
    check(nlohmann::json::parse(chat->template_args_json, nullptr, false).is_object(), "arguments");
  }
}

void check_generate(const GenerateRequest& r) {
  check(!r.model.empty() && r.request_id.size() <= 128, "names");
  check_range(r.sampling.temperature, 0, 100, "temperature");
  check(!r.sampling.temperature || !std::signbit(*r.sampling.temperature), "-0");
  check_range(r.sampling.top_k, 0, 2147483647, "top_k");
  check(!r.sampling.top_p || (*r.sampling.top_p > 0 && *r.sampling.top_p <= 1), "top_p");
  check_range(r.sampling.min_p, 0, 1, "min_p");
  check(!r.sampling.typical_p || (*r.sampling.typical_p > 0 && *r.sampling.typical_p <= 1),
        "typical_p");
  check_range(r.sampling.repetition_penalty, 0.01, 100, "repetition_penalty");
  check_range(r.sampling.presence_penalty, -2, 2, "presence_penalty");
  check_range(r.sampling.frequency_penalty, -2, 2, "frequency_penalty");
  check_range(r.stopping.max_new_tokens, 1, 2147483647, "max_new_tokens");
  check_range(r.stopping.min_new_tokens, 0, 2147483647, "min_new_tokens");
  check_range(r.truncate_prompt_tokens, 1, 2147483647, "truncate_prompt_tokens");
  const MethodEntry* const method = find_method(r.method);
  check(!method || !method->check(r.parameters, Field::By::kRequest), "parameters", r.method);
  check(!beam_entry().check(r.beam, Field::By::kRequest), "beam");
  check(r.n >= 1 && r.n <= 16 && r.priority >= -100 && r.priority <= 100, "n, priority");
  check(r.top_logprobs >= 0 && r.top_logprobs <= 20, "top_logprobs");
  check(r.stopping.stop_sequences.size() <= 64, "stop_sequences");
  for (const std::string& s : r.stopping.stop_sequences) check(!s.empty() && s.size() <= 1024);
  if (r.stopping.time_limit) {
    check(*r.stopping.time_limit >= Duration::zero() &&
              *r.stopping.time_limit <= std::chrono::seconds(86400),
          "time_limit");
  }
  check_prompt(r.prompt);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  if (const auto r = generate_request_from(make<v1::GenerateRequest>(data, size)); r.ok()) {
    check_generate(*r);
  } else {
    check_refused(r.status());
  }
  if (const auto r = score_request_from(make<v1::ScoreRequest>(data, size)); r.ok()) {
    check(r->top_logprobs >= 0 && r->top_logprobs <= 20, "top_logprobs");
    check_prompt(r->prompt);
  } else {
    check_refused(r.status());
  }
  if (const auto r = tokenize_request_from(make<v1::TokenizeRequest>(data, size)); !r.ok()) {
    check_refused(r.status());
  }
  return 0;
}
