#include "server/openai/translation_parts.h"

#include <algorithm>
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

absl::StatusOr<std::string> chat_request(
    Api api, const std::string& body, absl::string_view stream_options,
    absl::FunctionRef<void(Fields* in, JsonWriter* out, Violations* wrong)> add_others) {
  TANDEM_RETURN_IF_ERROR(check_any_json_object(body));
  Violations wrong;
  Fields in(body, "", &wrong);
  JsonWriter out('{');
  translate_fields(api, &in, [&out](auto name, auto value) { out.add(name, value); }, &wrong);
  add_others(&in, &out, &wrong);
  if (in.boolean("stream").value_or(false)) {
    out.add("stream", "true");
    out.add("stream_options", stream_options);
  }
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out.text();
}

std::string text_block(const std::string& text) {
  return absl::StrCat("{\"type\":\"text\",\"text\":", json_string(text), "}");
}

std::string text_content(absl::string_view content, const std::string& path,
                         std::initializer_list<absl::string_view> types, absl::string_view allowed,
                         Violations* wrong) {
  if (kind_of(content) == JsonKind::kString) return std::string(content);
  JsonWriter parts('[');
  if (!expect_kind(content, JsonKind::kArray, path, wrong)) return parts.text();
  int index = 0;
  for (const absl::string_view part : elements_of(content)) {
    const std::string at = absl::StrCat(path, "[", index++, "]");
    if (!expect_kind(part, JsonKind::kObject, at, wrong)) break;
    Fields in(part, at + ".", wrong);
    if (std::ranges::find(types, in.string("type").value_or("")) == types.end()) {
      wrong->add(out_of_range(at + ".type", "another type", allowed));
      break;
    }
    parts.add(text_block(in.string("text").value_or("")));
  }
  return parts.text();
}

std::string tool_of(const JsonWriter& function) {
  JsonWriter out('{');
  out.add("type", "\"function\"");
  out.add("function", function.text());
  return out.text();
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
