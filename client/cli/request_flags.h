// The fields of GenerateRequest as flags, made from its descriptor: `--max-new-tokens 64` for
// max_new_tokens, so that a new scalar field is a flag at once. Also what the prompt is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/flags.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

struct RequestFlags {
  std::optional<std::string> model;
  std::optional<std::string> method;  // name of a field of the oneof `method`
  std::vector<std::string> sets;      // "FIELD=VALUE"
  std::optional<std::string> prompt, prompt_file, token_ids, chat;
  std::optional<std::string> system;  // a message before the prompt, which is then a chat
  bool reads_input = false;           // standard input is the prompt where no other is given
  std::vector<std::pair<std::string, std::string>> fields;  // proto path, value

  // Without `prompts` those that give one are left out, but for --system.
  void add_to(Flags* flags, bool prompts = true);

  // A prompt that stands alone, without --prompt; "-" is standard input.
  bool has_prompt() const { return prompt || prompt_file || token_ids || chat; }
  absl::Status take_arguments(const std::vector<std::string>& arguments);

  // Everything above as a request, whose model may have no name yet. Errors are wrong usage.
  absl::StatusOr<v1::GenerateRequest> request() const;
  absl::StatusOr<v1::GenerateRequest> request_without_prompt() const;

 private:
  void add_prompts(Flags* flags);
};

// The error names what is offered.
absl::Status choose_method(const std::string& name, v1::GenerateRequest* request);

// Of the oneof `method`: "auto", "autoregressive", ...
std::vector<std::string> method_names();

// A chat file: a JSON array of messages, or an object {"messages", "tools", "template_args",
// "add_generation_prompt"}. Members of a message other than role, content, name, tool_calls and
// tool_call_id go into `extra`.
absl::StatusOr<v1::Chat> chat_from_json(const std::string& text, const std::string& file_name);

}  // namespace tandem::cli
