// Converts messages to JSON: fields by their proto names, numbers as numbers.
//
// Enum values have no prefix: methods, sources, roles and kinds of passes in lower case ("bild",
// "large", "verify"), all others in upper case ("EXACT", "EOS"). Bytes are arrays of numbers. Pure
// functions.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

using Json = nlohmann::ordered_json;

// All fields, including zeros. Omits unset `optional` fields and messages.
Json to_json(const google::protobuf::Message& message);

// {"id", "provenance": {"proposed", "confirmed", optional "corrected": true, "index"}, optional
// "pass", and if requested "text", "bytes", "logprob", "top_logprobs"}
Json token_to_json(const v1::Token& token);

// The name of an enum value, as above.
std::string enum_name(const google::protobuf::EnumValueDescriptor* value);
std::string enum_name(const google::protobuf::EnumDescriptor* type, int number);
inline std::string method_text(v1::Method method) {
  return enum_name(v1::Method_descriptor(), method);
}
inline std::string contract_text(v1::Contract contract) {
  return enum_name(v1::Contract_descriptor(), contract);
}
inline std::string finish_reason_text(v1::FinishReason reason) {
  return enum_name(v1::FinishReason_descriptor(), reason);
}

// On one line, or indented. Ill-formed UTF-8 becomes U+FFFD.
std::string dump(const Json& json, bool indent = false);

}  // namespace tandem::cli
