// Flags for the fields of GenerateRequest, generated from its descriptor: `--max-new-tokens 64`
// sets max_new_tokens. A new scalar field becomes a flag automatically. Also the flags of the
// prompt.
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
  std::optional<std::string> method;  // a field of the oneof `method`
  std::vector<std::string> sets;      // "FIELD=VALUE"
  std::optional<std::string> prompt, prompt_file, token_ids, chat;
  std::optional<std::string> json_schema, grammar;  // files with a constraint
  std::optional<std::string> regex;                 // a constraint
  std::optional<std::string> system;                // a system message; makes the prompt a chat
  bool reads_input = false;  // without a prompt, standard input is the prompt
  std::vector<std::pair<std::string, std::string>> fields;  // proto path, value

  // `prompts`: also add the flags of the prompt other than --system.
  void add_to(Flags* flags, bool prompts = true);

  // Whether a flag or an argument gives a prompt.
  bool has_prompt() const { return prompt || prompt_file || token_ids || chat; }
  // Takes a prompt without --prompt; "-" is standard input.
  absl::Status take_arguments(const std::vector<std::string>& arguments);

  // The request; its model may be unset. Errors are wrong usage.
  absl::StatusOr<v1::GenerateRequest> request() const;
  absl::StatusOr<v1::GenerateRequest> request_without_prompt() const;

 private:
  void add_prompts(Flags* flags);
  absl::Status put_constraint(v1::GenerateRequest* request) const;
};

// The error lists all methods.
absl::Status choose_method(const std::string& name, v1::GenerateRequest* request);

// The fields of the oneof `method`: "auto", "autoregressive", ...
std::vector<std::string> method_names();

// A chat file: a JSON array of messages, or an object {"messages", "tools", "template_args",
// "add_generation_prompt"}. Members of a message other than role, content, name, tool_calls and
// tool_call_id go into `extra`.
absl::StatusOr<v1::Chat> chat_from_json(const std::string& text, const std::string& file_name);

}  // namespace tandem::cli
