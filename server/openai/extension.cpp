// The member "tandem": the decoding method and its parameters, the contract, and sampling
// parameters that OpenAI lacks, in protobuf's JSON form of GenerateRequest.
//
//   "tandem": {"method": "bild", "contract": "exact", "top_k": 40}
//   "tandem": {"bild": {"rollback_threshold": 0.69}, "require_contract": "CONTRACT_EXACT"}
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "server/openai/fields.h"
#include "server/openai/request.h"

namespace tandem::openai {
namespace {

constexpr size_t kMaxBytes = 64 << 10;
constexpr size_t kMaxErrorText = 200;

// Fields with an OpenAI name.
constexpr std::array<std::pair<absl::string_view, absl::string_view>, 16> kNamed = {{
    {"model", "model"},
    {"text", "prompt"},
    {"token_ids", "prompt"},
    {"chat", "messages"},
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"logit_bias", "logit_bias"},
    {"seed", "seed"},
    {"n", "n"},
    {"max_new_tokens", "max_tokens"},
    {"stop_sequences", "stop"},
    {"logprobs", "logprobs"},
    {"top_logprobs", "top_logprobs"},
    {"json_schema", "response_format"},
}};
// Fields that "tokens" sets.
constexpr std::array<absl::string_view, 2> kOfTokens = {"return_tokens", "return_token_texts"};

void check_names(const v1::GenerateRequest& set, Violations* wrong) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  set.GetReflection()->ListFields(set, &fields);
  for (const auto* const field : fields) {
    for (const auto& [ours, theirs] : kNamed) {
      if (field->name() != ours) continue;
      wrong->add(out_of_range(absl::StrCat("tandem.", ours), "set",
                              absl::StrCat("unset; use ", theirs, " outside \"tandem\"")));
    }
    for (const absl::string_view name : kOfTokens) {
      if (field->name() != name) continue;
      wrong->add(out_of_range(absl::StrCat("tandem.", name), "set", "unset; use \"tokens\": true"));
    }
  }
}

void method_from(const std::string& name, v1::GenerateRequest* out, Violations* wrong) {
  const auto* const methods = v1::GenerateRequest::descriptor()->FindOneofByName("method");
  const auto* const given = out->GetReflection()->GetOneofFieldDescriptor(*out, methods);
  std::vector<std::string> names;
  for (int i = 0; i < methods->field_count(); ++i) {
    const auto* const field = methods->field(i);
    names.push_back(field->name());
    if (name != field->name()) continue;
    if (given != nullptr && given != field) {
      return wrong->add(
          out_of_range("tandem.method", name, given->name() + ", whose parameters are set"));
    }
    out->GetReflection()->MutableMessage(out, field);
    return;
  }
  wrong->add(out_of_range("tandem.method", "another method", absl::StrJoin(names, ", ")));
}

void contract_from(const std::string& name, v1::GenerateRequest* out, Violations* wrong) {
  v1::Contract contract = v1::CONTRACT_UNSPECIFIED;
  if (v1::Contract_Parse("CONTRACT_" + absl::AsciiStrToUpper(name), &contract)) {
    return out->set_require_contract(contract);
  }
  wrong->add(out_of_range("tandem.contract", "another contract",
                          "any, lossy, distribution, exact_up_to_rounding, exact"));
}

}  // namespace

void extension_from(absl::string_view object, v1::GenerateRequest* out, Violations* wrong) {
  if (object.size() > kMaxBytes) {
    return wrong->add(out_of_range("tandem", absl::StrCat(object.size(), " bytes"),
                                   absl::StrCat("at most ", kMaxBytes)));
  }
  Fields in(object, "tandem.", wrong);
  const auto method = in.string("method");
  const auto contract = in.string("contract");
  const bool tokens = in.boolean("tokens").value_or(false);
  const auto trace = in.boolean("trace");
  const std::string rest = absl::StrCat("{", in.rest(), "}");
  const auto parsed = google::protobuf::util::JsonStringToMessage(rest, out);
  if (!parsed.ok()) {
    std::string why(parsed.message().data(), parsed.message().size());
    for (char& c : why) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    out->Clear();
    return wrong->add(wrong_field("tandem", why.substr(0, kMaxErrorText)));
  }
  check_names(*out, wrong);
  if (tokens) out->set_return_token_texts(true);
  if (trace.has_value()) out->set_trace(*trace);
  if (method.has_value()) method_from(*method, out, wrong);
  if (contract.has_value()) contract_from(*contract, out, wrong);
}

}  // namespace tandem::openai
