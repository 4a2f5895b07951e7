#include "engine/host/config/settings_proto.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kMethodPrefix[] = "METHOD_";

std::optional<SettingValue> value_of(const Message& message, const FieldDescriptor& field) {
  const auto& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_INT32:
      return int64_t{r.GetInt32(message, &field)};
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_STRING:
      return r.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = r.GetEnumValue(message, &field);
      if (number == 0) return std::nullopt;
      const auto* const value = field.enum_type()->FindValueByNumber(number);
      return value ? SettingValue(value->name()) : SettingValue(int64_t{number});
    }
    default:
      return std::nullopt;
  }
}

void collect(const Message& message, const std::string& prefix, Settings* out) {
  const auto& r = *message.GetReflection();
  std::vector<const FieldDescriptor*> set;
  r.ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string name = prefix + field->name();
    if (field->is_repeated()) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
      std::vector<std::string> texts;
      for (int i = 0; i < r.FieldSize(message, field); ++i) {
        texts.push_back(r.GetRepeatedString(message, field, i));
      }
      out->push_back({name, std::move(texts)});
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      collect(r.GetMessage(message, field), name + ".", out);
    } else if (auto value = value_of(message, *field)) {
      out->push_back({name, *std::move(value)});
    }
  }
}

int32_t narrow(int64_t n) {
  using Limits = std::numeric_limits<int32_t>;
  return static_cast<int32_t>(std::clamp<int64_t>(n, Limits::min(), Limits::max()));
}

// Does nothing if the field has another type.
void put(const SettingValue& value, const FieldDescriptor& field, Message* to) {
  const auto& r = *to->GetReflection();
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    if (!field.is_repeated() || field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) return;
    for (const std::string& text : *texts) r.AddString(to, &field, text);
    return;
  }
  if (field.is_repeated()) return;
  const auto* const whole = std::get_if<int64_t>(&value);
  const auto* const real = std::get_if<double>(&value);
  const auto* const text = std::get_if<std::string>(&value);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (const auto* on = std::get_if<bool>(&value)) r.SetBool(to, &field, *on);
      return;
    case FieldDescriptor::CPPTYPE_INT32:
      if (whole) r.SetInt32(to, &field, narrow(*whole));
      return;
    case FieldDescriptor::CPPTYPE_INT64:
      if (whole) r.SetInt64(to, &field, *whole);
      return;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (real) r.SetDouble(to, &field, *real);
      return;
    case FieldDescriptor::CPPTYPE_STRING:
      if (text) r.SetString(to, &field, *text);
      return;
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* const named = text ? field.enum_type()->FindValueByName(*text) : nullptr;
      if (named) r.SetEnum(to, &field, named);
      return;
    }
    default:
      return;
  }
}

}  // namespace

Settings settings_from(const Message& message) {
  Settings out;
  collect(message, "", &out);
  return out;
}

void put_settings(const Settings& settings, Message* message) {
  for (const Setting& s : settings) {
    Message* to = message;
    std::string name = s.name;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
      const auto* const within = to->GetDescriptor()->FindFieldByName(name.substr(0, dot));
      if (!within || !within->message_type() || within->is_repeated()) break;
      to = to->GetReflection()->MutableMessage(to, within);
      name.erase(0, dot + 1);
    }
    const auto* const field = to->GetDescriptor()->FindFieldByName(name);
    if (field) put(s.value, *field, to);
  }
}

int method_number(const EnumDescriptor& type, const std::string& method) {
  const auto* const value =
      type.FindValueByName(absl::StrCat(kMethodPrefix, absl::AsciiStrToUpper(method)));
  return value ? value->number() : 0;
}

std::string method_of_number(const EnumDescriptor& type, int number) {
  const auto* const value = number == 0 ? nullptr : type.FindValueByNumber(number);
  if (!value || !absl::StartsWith(value->name(), kMethodPrefix)) return "";
  return absl::AsciiStrToLower(value->name().substr(sizeof(kMethodPrefix) - 1));
}

}  // namespace tandem
