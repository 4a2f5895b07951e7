// Names of enum values for people: without the prefix that the proto style asks for.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>

namespace tandem {

// "EOS" of FINISH_REASON_EOS, "CHAIN" of TREE_CHAIN: the prefix is the zero value's name without
// UNSPECIFIED.
std::string short_name(const google::protobuf::EnumValueDescriptor* value);

// By its short or its full name; null when there is none.
const google::protobuf::EnumValueDescriptor* find_value(
    const google::protobuf::EnumDescriptor* type, const std::string& name);

}  // namespace tandem
