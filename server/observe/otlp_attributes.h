// Attributes of OpenTelemetry's spans and resources.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "opentelemetry/proto/common/v1/common.pb.h"

namespace tandem {

// Adds an attribute to `to`, a Span or a Resource; the caller sets its value.
template <class To>
opentelemetry::proto::common::v1::AnyValue* add_attribute(absl::string_view key, To* to) {
  opentelemetry::proto::common::v1::KeyValue* const added = to->add_attributes();
  added->set_key(std::string(key));
  return added->mutable_value();
}

template <class To>
void set_attribute(absl::string_view key, absl::string_view value, To* to) {
  add_attribute(key, to)->set_string_value(std::string(value));
}
template <class To>
void set_attribute(absl::string_view key, int64_t value, To* to) {
  add_attribute(key, to)->set_int_value(value);
}
template <class To>
void set_attribute(absl::string_view key, double value, To* to) {
  add_attribute(key, to)->set_double_value(value);
}

}  // namespace tandem
