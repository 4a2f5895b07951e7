#include "client/set_field.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/enum_names.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string fields_of(const Descriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return absl::StrJoin(names, ", ");
}

std::string values_of(const FieldDescriptor* field) {
  std::vector<std::string> names;
  for (int i = 0; i < field->enum_type()->value_count(); ++i) {
    if (field->enum_type()->value(i)->number() != 0) {
      names.push_back(short_name(field->enum_type()->value(i)));
    }
  }
  return absl::StrJoin(names, ", ");
}

// One scalar from text: set, or added to a repeated field.
absl::Status put_scalar(Message* message, const FieldDescriptor* field, absl::string_view path,
                        absl::string_view text) {
  const Reflection* const reflection = message->GetReflection();
  const auto wrong = [&](absl::string_view allowed) {
    return out_of_range(path, quote_value(text), allowed);
  };
  const auto put = [&](const auto& value, auto set, auto add) {
    (reflection->*(field->is_repeated() ? add : set))(message, field, value);
    return absl::OkStatus();
  };
  // `number`: of the type that the setters take.
  const auto parsed = [&](auto number, bool (*parse)(absl::string_view, decltype(number)*),
                          absl::string_view allowed, auto set, auto add) {
    return parse(text, &number) ? put(number, set, add) : wrong(allowed);
  };
  using R = Reflection;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return parsed(int32_t{}, absl::SimpleAtoi, "a 32-bit integer", &R::SetInt32, &R::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return parsed(int64_t{}, absl::SimpleAtoi, "a 64-bit integer", &R::SetInt64, &R::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return parsed(uint32_t{}, absl::SimpleAtoi, "an unsigned 32-bit integer", &R::SetUInt32,
                    &R::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return parsed(uint64_t{}, absl::SimpleAtoi, "an unsigned 64-bit integer", &R::SetUInt64,
                    &R::AddUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return parsed(double{}, absl::SimpleAtod, "a number", &R::SetDouble, &R::AddDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return parsed(float{}, absl::SimpleAtof, "a number", &R::SetFloat, &R::AddFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return parsed(bool{}, absl::SimpleAtob, "true, false", &R::SetBool, &R::AddBool);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* const v = find_value(field->enum_type(), std::string(text));
      return v == nullptr ? wrong(values_of(field)) : put(v, &R::SetEnum, &R::AddEnum);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return put(std::string(text), &R::SetString, &R::AddString);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return wrong("a scalar field");
}

// A whole message from text format, with or without braces around it.
absl::Status put_message(Message* message, const FieldDescriptor* field, absl::string_view path,
                         absl::string_view text) {
  Message* const target = field->is_repeated()
                              ? message->GetReflection()->AddMessage(message, field)
                              : message->GetReflection()->MutableMessage(message, field);
  std::string body(text);
  if (body.size() >= 2 && body.front() == '{' && body.back() == '}') {
    body = body.substr(1, body.size() - 2);
  }
  struct Silent : google::protobuf::io::ErrorCollector {
    void AddError(int, int, const std::string& what) override { message = what; }
    std::string message;
  } errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.AllowPartialMessage(true);
  if (!parser.MergeFromString(body, target)) {
    return out_of_range(path, quote_value(text),
                        absl::StrCat("text format of ", field->message_type()->full_name(), " (",
                                     errors.message, ")"));
  }
  return absl::OkStatus();
}

absl::Status put(Message* message, const FieldDescriptor* field, absl::string_view path,
                 absl::string_view text) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return put_message(message, field, path, text);
  }
  if (field->is_repeated() && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
    for (absl::string_view item : absl::StrSplit(text, ',')) {
      TANDEM_RETURN_IF_ERROR(put_scalar(message, field, path, item));
    }
    return absl::OkStatus();
  }
  return put_scalar(message, field, path, text);
}

// An entry of a map field, whose key is the last segment of the path.
absl::Status put_entry(Message* message, const FieldDescriptor* field, absl::string_view path,
                       absl::string_view key, absl::string_view value) {
  Message* const entry = message->GetReflection()->AddMessage(message, field);
  const Descriptor* const type = field->message_type();
  TANDEM_RETURN_IF_ERROR(put_scalar(entry, type->map_key(), path, key));
  return put_scalar(entry, type->map_value(), path, value);
}

}  // namespace

absl::Status set_field(Message* message, absl::string_view path, absl::string_view value) {
  const std::vector<std::string> segments = absl::StrSplit(path, '.');
  for (size_t i = 0; i < segments.size(); ++i) {
    std::string name = segments[i];
    int index = -1;
    if (const size_t bracket = name.find('['); bracket != std::string::npos) {
      if (name.back() != ']' ||
          !absl::SimpleAtoi(name.substr(bracket + 1, name.size() - bracket - 2), &index) ||
          index < 0) {
        return out_of_range(path, quote_value(name), "FIELD or FIELD[INDEX]");
      }
      name.resize(bracket);
    }
    const Descriptor* const type = message->GetDescriptor();
    const FieldDescriptor* const field = type->FindFieldByName(name);
    if (field == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": no field ", quote_value(name), " in ",
                                                     type->full_name(),
                                                     "; allowed: ", fields_of(type)));
    }
    const bool last = i + 1 == segments.size();
    if (field->is_map() && i + 2 == segments.size()) {
      return put_entry(message, field, path, segments[i + 1], value);
    }
    if (last && index < 0) return put(message, field, path, value);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map() ||
        field->is_repeated() != (index >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", quote_value(name), " is ",
                       field->is_repeated() ? "repeated: FIELD[INDEX].FIELD" : "not a message"));
    }
    const Reflection* const reflection = message->GetReflection();
    if (!field->is_repeated()) {
      message = reflection->MutableMessage(message, field);
      continue;
    }
    const int size = reflection->FieldSize(*message, field);
    if (index > size) {
      return out_of_range(path, index, absl::StrCat("[0, ", size, "] (one more than there are)"));
    }
    message = index == size ? reflection->AddMessage(message, field)
                            : reflection->MutableRepeatedMessage(message, field, index);
    if (last) {
      google::protobuf::TextFormat::Parser parser;
      if (!parser.MergeFromString(std::string(value), message)) {
        return out_of_range(path, quote_value(value), "text format");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status set_field(Message* message, absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return out_of_range("--set", quote_value(assignment), "FIELD=VALUE");
  }
  return set_field(message, assignment.substr(0, equals), assignment.substr(equals + 1));
}

}  // namespace tandem
