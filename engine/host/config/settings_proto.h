// Messages as settings, whatever fields they have: the bridge between the protos, which a client or
// a deployment file fills, and the entries of methods, which know no proto.
#pragma once

#include <string>

#include "engine/base/settings.h"

namespace google::protobuf {
class EnumDescriptor;
class Message;
}  // namespace google::protobuf

namespace tandem {

// The fields that are set. Those of a message within as "tree.depth"; an enum's value by its name,
// one that the enum does not have as its number, its zero (nothing said) not at all. Numbers,
// texts, enums and lists of texts; fields of other kinds are left out.
Settings settings_from(const google::protobuf::Message& message);

// Those settings that `message` has fields for.
void put_settings(const Settings& settings, google::protobuf::Message* message);

// The value of an enum behind a method's name, and the other way round: "llm_to_slm" is LLM_TO_SLM.
// 0 and "" where there is none.
int method_number(const google::protobuf::EnumDescriptor& type, const std::string& method);
std::string method_of_number(const google::protobuf::EnumDescriptor& type, int number);

}  // namespace tandem
