#include "server/openai/translation_parts.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status.h"

namespace tandem::openai {

void JsonWriter::add(absl::string_view name, absl::string_view value) {
  absl::StrAppend(&text_, empty() ? "" : ",", json_string(name), ":", value);
}

void JsonWriter::add(absl::string_view value) {
  absl::StrAppend(&text_, empty() ? "" : ",", value);
}

bool expect_kind(absl::string_view value, JsonKind kind, const std::string& path,
                 Violations* wrong) {
  if (kind_of(value) == kind) return true;
  wrong->add(out_of_range(path, kind_name(kind_of(value)), kind_name(kind)));
  return false;
}

void for_each_event(absl::string_view events,
                    absl::FunctionRef<void(const nlohmann::json& data)> event,
                    absl::FunctionRef<void()> done) {
  while (!events.empty()) {
    const size_t end = events.find("\n\n");
    absl::string_view data = events.substr(0, end);
    events.remove_prefix(end == absl::string_view::npos ? events.size() : end + 2);
    if (!absl::ConsumePrefix(&data, "data: ")) continue;
    if (data == "[DONE]") {
      done();
    } else {
      event(nlohmann::json::parse(data.begin(), data.end()));
    }
  }
}

std::string typed_event(const OrderedJson& data) {
  return absl::StrCat("event: ", data["type"].get<std::string>(),
                      "\ndata: ", data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
                      "\n\n");
}

const nlohmann::json& member_of(const nlohmann::json& object, const char* name) {
  static const nlohmann::json& null = *new nlohmann::json();
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

std::string text_of(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = member_of(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

int64_t count_of(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = member_of(object, name);
  return value.is_number() ? value.get<int64_t>() : 0;
}

std::string id_of(const nlohmann::json& chat, absl::string_view prefix) {
  const std::string id = text_of(chat, "id");
  return absl::StrCat(prefix, absl::StripPrefix(id, "chatcmpl-"));
}

absl::Status with_names(const absl::Status& status,
                        absl::FunctionRef<std::string(const std::string& field)> rename) {
  const std::vector<Violation> violations = violations_of(status);
  if (violations.empty()) return status;
  Violations out;
  for (const Violation& v : violations) out.add(wrong_field(rename(v.field), v.description));
  absl::Status renamed = out.status();
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (!renamed.GetPayload(type).has_value()) renamed.SetPayload(type, payload);
  });
  return renamed;
}

}  // namespace tandem::openai
