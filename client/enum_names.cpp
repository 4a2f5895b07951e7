#include "client/enum_names.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

absl::string_view prefix_of(const google::protobuf::EnumDescriptor* type) {
  const auto* const zero = type->FindValueByNumber(0);
  const absl::string_view name = zero == nullptr ? "" : absl::string_view(zero->name());
  return absl::EndsWith(name, "_UNSPECIFIED") ? absl::StripSuffix(name, "UNSPECIFIED") : "";
}

}  // namespace

std::string short_name(const google::protobuf::EnumValueDescriptor* value) {
  return std::string(absl::StripPrefix(value->name(), prefix_of(value->type())));
}

const google::protobuf::EnumValueDescriptor* find_value(
    const google::protobuf::EnumDescriptor* type, const std::string& name) {
  const auto* const found = type->FindValueByName(name);
  return found != nullptr ? found : type->FindValueByName(std::string(prefix_of(type)) + name);
}

}  // namespace tandem
