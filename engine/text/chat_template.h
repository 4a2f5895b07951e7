// ChatTemplate: renders a conversation to the prompt text that a model was trained on.
//
// The template is the model's own Jinja program, rendered as Transformers' apply_chat_template does
// (trim_blocks, lstrip_blocks, loop controls, `{% generation %}`, raise_exception, strftime_now,
// JSON without HTML escapes, Python's methods and formatting of values). Templates are untrusted
// programs: instructions, output, recursion and memory are bounded.
//
// Threading: immutable after load(); render() is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

struct TandemTemplate;  // engine/text/rust/tandem_text.h

namespace tandem {

struct ChatTemplateOptions {
  uint64_t fuel = 5'000'000;                  // template instructions per render
  size_t max_output_bytes = 16 << 20;         // of the rendered text
  std::function<absl::Time()> now;            // for strftime_now; empty: the real clock
  std::function<absl::TimeZone()> time_zone;  // for strftime_now; empty: local time, as in Python
};

class ChatTemplate {
 public:
  // Reads the template of `directory`: chat_template.jinja and additional_chat_templates/*.jinja,
  // else `chat_template` of tokenizer_config.json (one, or a list of named ones). Also reads the
  // special tokens that templates see (bos_token, eos_token, ...). A directory without a template
  // is no error: present() is false. Errors: INVALID_ARGUMENT naming the file (not JSON, not UTF-8,
  // not a template, larger than 8 MiB).
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> load(const std::string& directory,
                                                                  ChatTemplateOptions options = {});

  // As load(), from the text of a tokenizer_config.json, for models without that file. `name`
  // replaces the file name in messages.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> parse(
      const std::string& name, const std::string& config, ChatTemplateOptions options = {});

  bool present() const { return handle_ != nullptr; }

  // The text of the template, or of all that the model has. Empty without one.
  const std::string& source() const { return source_; }

  // Text of a conversation.
  //   messages_json    array of objects: [{"role": "user", "content": "..."}, ...]; not empty
  //   tools_json       array of JSON schemas; empty or "null": none. With tools, the template named
  //                    "tool_use" is used if there is one
  //   extra_args_json  object of further template variables, or empty. They override special
  //   tokens,
  //                    but not `messages`, `tools` or `add_generation_prompt`
  // Errors: FAILED_PRECONDITION "model has no chat template"; INVALID_ARGUMENT for bad JSON (naming
  // the argument), for errors of the template (naming its file and line), and for a template that
  // exceeds its limits.
  absl::StatusOr<std::string> render(std::string_view messages_json, std::string_view tools_json,
                                     std::string_view extra_args_json,
                                     bool add_generation_prompt) const;

  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

 private:
  ChatTemplate() = default;

  absl::Status read_source();

  TandemTemplate* handle_ = nullptr;  // owned; null: the model has no template
  std::string source_;
  ChatTemplateOptions options_;
};

}  // namespace tandem
