// Answers as JSON: every field by its proto name, numbers as numbers.
//
// Methods and sources are written as they are asked for ("bild", "large"); contracts, finish
// reasons and the rest as the proto spells them. Pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

using Json = nlohmann::ordered_json;

// All fields, also those at zero; unset `optional` fields and unset messages are left out.
Json to_json(const google::protobuf::Message& message);

// {"id", "provenance": {"proposed", "confirmed", and where it is so "corrected": true}, and with
// logprobs "text", "logprob", "top_logprobs"}
Json token_to_json(const v1::Token& token);

// The name of an enum value, as above.
std::string enum_name(const google::protobuf::EnumValueDescriptor* value);
std::string method_text(v1::Method method);

// On one line, or indented. Ill-formed UTF-8 becomes U+FFFD.
std::string dump(const Json& json, bool indent = false);

}  // namespace tandem::cli
