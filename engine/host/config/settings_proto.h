// Converts between proto messages and Settings, so that the entries of methods do not depend on
// protos.
#pragma once

#include <string>

#include "engine/base/settings.h"

namespace google::protobuf {
class EnumDescriptor;
class Message;
}  // namespace google::protobuf

namespace tandem {

// The fields that are set: numbers, strings, enums and lists of strings. Fields of a nested message
// are named "tree.depth". Enum values have their names, unknown ones their number. Zero
// (unspecified) is left out.
Settings settings_from(const google::protobuf::Message& message);

// Sets the fields of `message` that `settings` names and it has.
void put_settings(const Settings& settings, google::protobuf::Message* message);

// From a method's name to its enum value and back: "llm_to_slm" is METHOD_LLM_TO_SLM. Unknown: 0
// and "".
int method_number(const google::protobuf::EnumDescriptor& type, const std::string& method);
std::string method_of_number(const google::protobuf::EnumDescriptor& type, int number);

}  // namespace tandem
