#include "engine/text/chat_template.h"

#include <array>
#include <ctime>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "engine/text/rust/tandem_text.h"
#include "engine/text/rust_result.h"

namespace tandem {

using text_internal::take_status;
using text_internal::take_string;

namespace {

// Python's datetime.now().strftime(format): as in C, plus %f for microseconds. %z and %Z are empty.
std::string python_strftime(std::string_view format, absl::Time now, absl::TimeZone zone) {
  std::string c_format;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      c_format.push_back(format[i]);
      continue;
    }
    const char directive = format[++i];
    if (directive == 'f') {
      const int64_t micros = absl::ToInt64Microseconds(zone.At(now).subsecond);
      absl::StrAppendFormat(&c_format, "%06d", micros);
    } else if (directive != 'z' && directive != 'Z') {
      c_format.push_back('%');
      c_format.push_back(directive);
    }
  }
  const std::tm broken_down = absl::ToTM(now, zone);
  std::array<char, 4096> buffer;
  const size_t size = std::strftime(buffer.data(), buffer.size(), c_format.c_str(), &broken_down);
  return std::string(buffer.data(), size);
}

size_t strftime_now(void* context, const char* format, size_t format_size, char* out,
                    size_t capacity) {
  const auto& options = *static_cast<const ChatTemplateOptions*>(context);
  const absl::Time now = options.now ? options.now() : absl::Now();
  const absl::TimeZone zone = options.time_zone ? options.time_zone() : absl::LocalTimeZone();
  const std::string text = python_strftime(std::string_view(format, format_size), now, zone);
  if (text.size() > capacity) return 0;
  text.copy(out, text.size());
  return text.size();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(
    const std::string& directory, ChatTemplateOptions options) {
  std::shared_ptr<ChatTemplate> chat_template(new ChatTemplate());
  chat_template->options_ = std::move(options);
  const TandemTemplateLimits limits = {chat_template->options_.fuel,
                                       chat_template->options_.max_output_bytes};
  TandemBytes error{};
  const TandemCode code =
      tandem_template_load(directory.data(), directory.size(), limits, &strftime_now,
                           &chat_template->options_, &chat_template->handle_, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  if (absl::Status read = chat_template->read_source(); !read.ok()) return read;
  return chat_template;
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(
    const std::string& name, const std::string& config, ChatTemplateOptions options) {
  std::shared_ptr<ChatTemplate> chat_template(new ChatTemplate());
  chat_template->options_ = std::move(options);
  const TandemTemplateLimits limits = {chat_template->options_.fuel,
                                       chat_template->options_.max_output_bytes};
  TandemBytes error{};
  const TandemCode code = tandem_template_parse(
      name.data(), name.size(), config.data(), config.size(), limits, &strftime_now,
      &chat_template->options_, &chat_template->handle_, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  if (absl::Status read = chat_template->read_source(); !read.ok()) return read;
  return chat_template;
}

absl::Status ChatTemplate::read_source() {
  if (!present()) return absl::OkStatus();
  TandemBytes text{};
  TandemBytes error{};
  const TandemCode code = tandem_template_source(handle_, &text, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  source_ = take_string(text);
  return absl::OkStatus();
}

ChatTemplate::~ChatTemplate() { tandem_template_free(handle_); }

absl::StatusOr<std::string> ChatTemplate::render(std::string_view messages_json,
                                                 std::string_view tools_json,
                                                 std::string_view extra_args_json,
                                                 bool add_generation_prompt) const {
  if (!present()) return absl::FailedPreconditionError("model has no chat template");
  TandemBytes text{};
  TandemBytes error{};
  const TandemCode code = tandem_template_render(
      handle_, messages_json.data(), messages_json.size(), tools_json.data(), tools_json.size(),
      extra_args_json.data(), extra_args_json.size(), add_generation_prompt ? 1 : 0, &text, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  return take_string(text);
}

}  // namespace tandem
