#include "server/openai/adapters.h"

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "server/openai/fields.h"
#include "server/openai/json_text.h"
#include "server/openai/translation_parts.h"

namespace tandem::openai {
namespace {

// By the field of tandem.v1.
constexpr std::array<std::pair<const char*, const char*>, 4> kNames{{{"adapter", "lora_name"},
                                                                     {"path", "lora_path"},
                                                                     {"model", "base_model_name"},
                                                                     {"replace", "load_inplace"}}};

std::string renamed(const std::string& field) {
  for (const auto& [own, vllm] : kNames) {
    if (field == own) return vllm;
  }
  return field;
}

// A text that is not empty.
std::string required(Fields* in, const char* name, Violations* wrong) {
  std::string text = in->string(name).value_or("");
  if (text.empty()) wrong->add(out_of_range(name, "none", "a text"));
  return text;
}

}  // namespace

absl::StatusOr<v1::LoadAdapterRequest> load_adapter_from(const std::string& body) {
  TANDEM_RETURN_IF_ERROR(check_any_json_object(body));
  Violations wrong;
  Fields in(body, "", &wrong);
  v1::LoadAdapterRequest out;
  out.set_adapter(required(&in, "lora_name", &wrong));
  out.set_path(required(&in, "lora_path", &wrong));
  out.set_model(in.string("base_model_name").value_or(""));
  out.set_replace(in.boolean("load_inplace").value_or(false));
  in.only("is_3d_lora_weight", "false");
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

absl::StatusOr<v1::UnloadAdapterRequest> unload_adapter_from(const std::string& body) {
  TANDEM_RETURN_IF_ERROR(check_any_json_object(body));
  Violations wrong;
  Fields in(body, "", &wrong);
  v1::UnloadAdapterRequest out;
  out.set_adapter(required(&in, "lora_name", &wrong));
  out.set_model(in.string("base_model_name").value_or(""));
  in.ignore("lora_int_id");
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

std::string adapter_loaded(const std::string& name) {
  return absl::StrCat("Success: LoRA adapter '", name, "' added successfully.");
}

std::string adapter_unloaded(const std::string& name) {
  return absl::StrCat("Success: LoRA adapter '", name, "' removed successfully.");
}

absl::Status with_lora_names(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return with_names(status, renamed);
  for (const auto& [own, vllm] : kNames) {
    const std::string start = absl::StrCat(own, ": ");
    if (!absl::StartsWith(status.message(), start)) continue;
    absl::Status out(status.code(),
                     absl::StrCat(vllm, ": ", status.message().substr(start.size())));
    status.ForEachPayload(
        [&](absl::string_view type, const absl::Cord& payload) { out.SetPayload(type, payload); });
    return out;
  }
  return status;
}

}  // namespace tandem::openai
