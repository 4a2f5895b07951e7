#include "client/cli/json.h"

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "client/enum_names.h"

namespace tandem::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

Json bytes_to_json(const std::string& bytes) {
  Json out = Json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

Json value_to_json(const Message& message, const FieldDescriptor* field, int index) {
  const auto* const r = message.GetReflection();
  const bool repeated = index >= 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return repeated ? r->GetRepeatedInt32(message, field, index) : r->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return repeated ? r->GetRepeatedInt64(message, field, index) : r->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? r->GetRepeatedUInt32(message, field, index) : r->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return repeated ? r->GetRepeatedUInt64(message, field, index) : r->GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return repeated ? r->GetRepeatedDouble(message, field, index) : r->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return repeated ? r->GetRepeatedFloat(message, field, index) : r->GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return repeated ? r->GetRepeatedBool(message, field, index) : r->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return enum_name(repeated ? r->GetRepeatedEnum(message, field, index)
                                : r->GetEnum(message, field));
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text =
          repeated ? r->GetRepeatedString(message, field, index) : r->GetString(message, field);
      if (field->type() == FieldDescriptor::TYPE_BYTES) return bytes_to_json(text);
      return text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return to_json(repeated ? r->GetRepeatedMessage(message, field, index)
                              : r->GetMessage(message, field));
  }
  return nullptr;
}

}  // namespace

std::string enum_name(const google::protobuf::EnumValueDescriptor* value) {
  const std::string& type = value->type()->full_name();
  const bool lower = type == "tandem.v1.Method" || type == "tandem.v1.Source" ||
                     type == "tandem.v1.PassRole" || type == "tandem.v1.PassKind";
  const std::string name = short_name(value);
  return lower ? absl::AsciiStrToLower(name) : name;
}

std::string enum_name(const google::protobuf::EnumDescriptor* type, int number) {
  const auto* const value = type->FindValueByNumber(number);
  return value == nullptr ? "unknown" : enum_name(value);
}

Json to_json(const Message& message) {
  Json out = Json::object();
  const auto* const type = message.GetDescriptor();
  const auto* const reflection = message.GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (field->is_repeated()) {
      Json items = Json::array();
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        items.push_back(value_to_json(message, field, k));
      }
      out[field->name()] = std::move(items);
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      out[field->name()] = value_to_json(message, field, -1);
    }
  }
  return out;
}

Json token_to_json(const v1::Token& token) {
  const auto source = [](v1::Source s) { return enum_name(v1::Source_descriptor(), s); };
  Json out;
  out["id"] = token.id();
  if (token.has_text()) out["text"] = token.text();
  if (token.has_bytes()) out["bytes"] = bytes_to_json(token.bytes());
  out["provenance"] = {{"proposed", source(token.proposed())},
                       {"confirmed", source(token.confirmed())}};
  if (token.corrected()) out["provenance"]["corrected"] = true;
  if (token.has_proposed_index()) out["provenance"]["index"] = token.proposed_index();
  if (token.pass_number() != 0) out["pass"] = token.pass_number();
  if (token.has_logprob()) out["logprob"] = token.logprob();
  if (!token.top_logprobs().empty()) {
    out["top_logprobs"] = Json::array();
    for (const v1::TopLogprob& top : token.top_logprobs()) {
      out["top_logprobs"].push_back(to_json(top));
    }
  }
  return out;
}

std::string dump(const Json& json, bool indent) {
  return json.dump(indent ? 2 : -1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::cli
