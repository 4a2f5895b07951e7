// Short names of proto enum values, without the prefix of the proto style.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>

namespace tandem {

// "EOS" for FINISH_REASON_EOS. The prefix is the zero value's name without UNSPECIFIED.
std::string short_name(const google::protobuf::EnumValueDescriptor* value);

// Finds a value by its short or full name; null if there is none.
const google::protobuf::EnumValueDescriptor* find_value(
    const google::protobuf::EnumDescriptor* type, const std::string& name);

}  // namespace tandem
