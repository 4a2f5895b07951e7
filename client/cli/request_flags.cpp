#include "client/cli/request_flags.h"

#include <google/protobuf/descriptor.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/set_field.h"
#include "engine/base/quote.h"
#include "engine/base/sampling_params.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

using google::protobuf::FieldDescriptor;

struct Described {
  std::string value;
  std::string help;
};

// Help texts of fields. A field without one is still a flag.
const std::map<std::string, Described>& descriptions() {
  static const auto* const kAll = [] {
    auto* const all = new std::map<std::string, Described>{
        {"adapter", {"NAME", "LoRA adapter of the model"}},
        {"request_id", {"ID", "id for the response and the server's logs"}},
        {"add_special_tokens",
         {"", "add the tokenizer's special tokens to a text prompt (default true)"}},
        {"truncate_prompt_tokens", {"N", "use the last N prompt tokens only"}},
        {"require_contract",
         {"C",
          "required guarantee: ANY, LOSSY, DISTRIBUTION, EXACT_UP_TO_ROUNDING, EXACT "
          "(default ANY)"}},
        {"logit_bias", {"ID=X", "add X in [-100, 100] to the logit of a token; repeatable"}},
        {"bad_token_ids", {"IDS", "tokens to exclude, as in 1,2,3"}},
        {"seed", {"N", "seed of sampling (default random)"}},
        {"n", {"N", "number of choices, [1, 16], printed at the end (default 1)"}},
        {"max_new_tokens", {"N", "stop after N tokens"}},
        {"min_new_tokens", {"N", "do not end before N tokens"}},
        {"stop_sequences", {"TEXT", "stop at TEXT; repeatable"}},
        {"stop_token_ids", {"IDS", "tokens to stop at, as in 1,2,3"}},
        {"include_stop_sequence", {"", "include the stop sequence in the text"}},
        {"ignore_eos", {"", "continue after the end-of-text token"}},
        {"time_limit_seconds", {"X", "stop after this time with TIME_LIMIT"}},
        {"skip_special_tokens", {"", "leave special tokens out of the text (default true)"}},
        {"logprobs", {"", "return log-probabilities of the chosen tokens"}},
        {"top_logprobs", {"N", "also of the N best tokens, at most 20"}},
        {"raw_logprobs", {"", "log-probabilities before sampling parameters"}},
        {"include_eos_token", {"", "include the end-of-text token in the tokens"}},
        {"return_tokens", {"", "return token ids and provenance (always with --format json)"}},
        {"return_token_texts", {"", "return the text and bytes of each token"}},
        {"whitespace_pattern",
         {"REGEX", "what may separate the tokens of constrained JSON (default: whitespace)"}},
        {"priority", {"N", "scheduling priority, [-100, 100]; larger runs earlier (default 0)"}},
    };
    for (const SamplingParameter& p : kSamplingParameters) {
      const std::string effect = *p.help ? absl::StrCat(p.help, "; ") : "";
      all->insert({p.name,
                   {p.integer ? "N" : "X",
                    absl::StrCat(effect, p.allowed(), "; ", p.off, ": ", p.off_means)}});
    }
    return all;
  }();
  return *kAll;
}

// Names of these flags in other programs.
constexpr std::pair<const char*, const char*> kOtherNames[] = {
    {"max-tokens", "max-new-tokens"},
    {"max-completion-tokens", "max-new-tokens"},
    {"n-predict", "max-new-tokens"},
    {"num-predict", "max-new-tokens"},
    {"max-length", "max-new-tokens"},
    {"min-tokens", "min-new-tokens"},
    {"stop", "stop-sequences"},
    {"stop-strings", "stop-sequences"},
    {"temp", "temperature"},
    {"repeat-penalty", "repetition-penalty"},
    {"messages", "chat"},
    {"input", "prompt-file"},
    {"file", "prompt-file"},
    {"system-prompt", "system"},
    {"lora", "adapter"},
    {"num-return-sequences", "n"},
    {"best-of", "n"},
    {"json-schema-file", "json-schema"},
    {"grammar-file", "grammar"},
    {"host", "server"},
    {"url", "server"},
    {"base-url", "server"},
    {"address", "server"},
};

absl::Status put_prompt(const RequestFlags& flags, v1::GenerateRequest* request) {
  const int given = flags.prompt.has_value() + flags.prompt_file.has_value() +
                    flags.token_ids.has_value() + flags.chat.has_value();
  if (given > 1) {
    return out_of_range("prompt", "several", "one of --prompt, --prompt-file, --token-ids, --chat");
  }
  if (flags.prompt.has_value()) request->set_text(*flags.prompt);
  if (flags.prompt_file.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(*request->mutable_text(), read_input(*flags.prompt_file));
  }
  if (flags.token_ids.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const auto ids, parse_token_ids(*flags.token_ids));
    *request->mutable_token_ids()->mutable_ids() = {ids.begin(), ids.end()};
  }
  if (flags.chat.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, read_input(*flags.chat));
    TANDEM_ASSIGN_OR_RETURN(*request->mutable_chat(), chat_from_json(text, *flags.chat));
  }
  // --set may have set a prompt.
  if (request->prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET && flags.reads_input) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, read_input("-"));
    if (!text.empty()) request->set_text(text);
  }
  if (request->prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return out_of_range("prompt", "none", "one of --prompt, --prompt-file, --token-ids, --chat");
  }
  return absl::OkStatus();
}

// Makes the prompt a user message after a system message.
absl::Status put_system(const std::string& system, v1::GenerateRequest* request) {
  if (request->has_token_ids()) {
    return out_of_range("--system", quote_value(system), "with a text or chat messages");
  }
  v1::Chat chat;
  v1::ChatMessage* const first = chat.add_messages();
  first->set_role("system");
  first->set_content(system);
  if (request->has_text()) {
    v1::ChatMessage* const said = chat.add_messages();
    said->set_role("user");
    said->set_content(request->text());
  } else {
    chat.MergeFrom(request->chat());
  }
  *request->mutable_chat() = std::move(chat);
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  const auto* const oneof = v1::GenerateRequest::descriptor()->FindOneofByName("method");
  for (int i = 0; i < oneof->field_count(); ++i) names.push_back(oneof->field(i)->name());
  return names;
}

void RequestFlags::add_prompts(Flags* flags) {
  flags->text("prompt", "TEXT", "prompt", &prompt);
  flags->text("prompt-file", "FILE", "prompt from a file; -: standard input", &prompt_file);
  flags->text("token-ids", "IDS", "prompt as token ids, as in 1,2,3", &token_ids);
  flags->text("chat", "FILE", "prompt as chat messages, a JSON file (see docs/command_line.md)",
              &chat);
}

void RequestFlags::add_to(Flags* flags, bool prompts) {
  flags->section("Request");
  flags->text("model", "NAME", "model (default the only model of the server)", &model);
  flags->text("method", "NAME", absl::StrJoin(method_names(), ", "), &method);
  if (prompts) add_prompts(flags);
  flags->text("system", "TEXT", "system message; the prompt becomes a user message", &system);
  flags->text("json-schema", "FILE", "the answer is JSON of this schema; -: standard input",
              &json_schema);
  flags->text("regex", "REGEX", "the answer matches this regular expression", &regex);
  flags->text("grammar", "FILE", "the answer matches this grammar (Lark or GBNF)", &grammar);
  flags->texts("set", "FIELD=VALUE",
               "set any field of GenerateRequest by its proto path; repeatable", &sets);

  for (const auto& [usual, ours] : kOtherNames) flags->also_known(usual, ours);
  flags->section("Fields of the request (defaults: the server's, unless noted)");
  const auto* const type = v1::GenerateRequest::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    const bool in_oneof = field->real_containing_oneof() != nullptr;
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (in_oneof || (is_message && !field->is_map()) || field->name() == "model") continue;
    if (field->name() == "trace") continue;  // --set trace=true; `compare` has a file of that name
    const auto described = descriptions().find(field->name());
    const bool known = described != descriptions().end();
    const std::string help = known ? described->second.help : "not supported by this version";
    const std::string flag = absl::StrReplaceAll(field->name(), {{"_", "-"}});
    if (field->is_map()) {
      flags->add(flag, known ? described->second.value : "KEY=VALUE", help,
                 [this, flag, name = field->name()](absl::string_view entry) {
                   const size_t equals = entry.find('=');
                   if (equals == absl::string_view::npos) {
                     return out_of_range(absl::StrCat("--", flag), quote_value(entry), "KEY=VALUE");
                   }
                   const std::string path = absl::StrCat(name, ".", entry.substr(0, equals));
                   const std::string value(entry.substr(equals + 1));
                   v1::GenerateRequest scratch;
                   TANDEM_RETURN_IF_ERROR(set_field(&scratch, path, value));
                   fields.emplace_back(path, value);
                   return absl::OkStatus();
                 });
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      flags->add_switch(flag, help, [this, name = field->name()](bool on) {
        fields.emplace_back(name, on ? "true" : "false");
      });
    } else {
      flags->add(flag, known ? described->second.value : "VALUE", help,
                 [this, field](absl::string_view value) {
                   // Checked at once, so that an error names the flag's value.
                   v1::GenerateRequest scratch;
                   TANDEM_RETURN_IF_ERROR(set_field(&scratch, field->name(), value));
                   fields.emplace_back(field->name(), std::string(value));
                   return absl::OkStatus();
                 });
    }
  }
}

absl::Status RequestFlags::take_arguments(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return absl::OkStatus();
  if (arguments.size() > 1) {
    return out_of_range("argument", quote_value(arguments[1]),
                        "one prompt, in quotes (the model goes after --model)");
  }
  if (prompt.has_value()) {
    return out_of_range("prompt", "several", "one of --prompt and an argument");
  }
  (arguments[0] == "-" ? prompt_file : prompt) = arguments[0];
  return absl::OkStatus();
}

absl::Status RequestFlags::put_constraint(v1::GenerateRequest* request) const {
  if (json_schema.has_value() + regex.has_value() + grammar.has_value() > 1) {
    return out_of_range("constraint", "several", "one of --json-schema, --regex, --grammar");
  }
  if (json_schema.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(*request->mutable_json_schema(), read_input(*json_schema));
  }
  if (regex.has_value()) request->set_regex(*regex);
  if (grammar.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(*request->mutable_grammar(), read_input(*grammar));
  }
  return absl::OkStatus();
}

absl::Status choose_method(const std::string& name, v1::GenerateRequest* request) {
  const auto* const oneof = v1::GenerateRequest::descriptor()->FindOneofByName("method");
  const auto* const field = v1::GenerateRequest::descriptor()->FindFieldByName(name);
  if (field == nullptr || field->real_containing_oneof() != oneof) {
    return out_of_range("--method", quote_value(name), absl::StrJoin(method_names(), ", "));
  }
  request->GetReflection()->MutableMessage(request, field);
  return absl::OkStatus();
}

absl::StatusOr<v1::GenerateRequest> RequestFlags::request_without_prompt() const {
  v1::GenerateRequest request;
  if (model.has_value()) request.set_model(*model);
  for (const auto& [name, value] : fields) {
    TANDEM_RETURN_IF_ERROR(set_field(&request, name, value));
  }
  if (method.has_value()) TANDEM_RETURN_IF_ERROR(choose_method(*method, &request));
  TANDEM_RETURN_IF_ERROR(put_constraint(&request));
  for (const std::string& assignment : sets) {
    TANDEM_RETURN_IF_ERROR(annotate(set_field(&request, assignment), "--set"));
  }
  return request;
}

absl::StatusOr<v1::GenerateRequest> RequestFlags::request() const {
  TANDEM_ASSIGN_OR_RETURN(v1::GenerateRequest request, request_without_prompt());
  TANDEM_RETURN_IF_ERROR(put_prompt(*this, &request));
  if (system.has_value()) TANDEM_RETURN_IF_ERROR(put_system(*system, &request));
  return request;
}

absl::StatusOr<v1::Chat> chat_from_json(const std::string& text, const std::string& file_name) {
  const auto wrong = [&](absl::string_view field, absl::string_view allowed) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": ", field, ": allowed: ", allowed));
  };
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return wrong("contents", "JSON");
  const Json messages = json.is_array()    ? json
                        : json.is_object() ? json.value("messages", Json())
                                           : Json();
  if (!messages.is_array()) {
    return wrong("contents", "an array of messages, or an object with `messages`");
  }
  v1::Chat chat;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& in = messages[i];
    const std::string field = absl::StrCat("messages[", i, "]");
    if (!in.is_object()) return wrong(field, "an object");
    v1::ChatMessage* const out = chat.add_messages();
    Json extra = Json::object();
    for (const auto& [key, value] : in.items()) {
      if (key == "tool_calls" && value.is_array()) {
        for (const Json& call : value) out->add_tool_calls(dump(call));
      } else if (value.is_string() && key == "role") {
        out->set_role(value.get<std::string>());
      } else if (value.is_string() && key == "content") {
        out->set_content(value.get<std::string>());
      } else if (value.is_string() && key == "name") {
        out->set_name(value.get<std::string>());
      } else if (value.is_string() && key == "tool_call_id") {
        out->set_tool_call_id(value.get<std::string>());
      } else {
        extra[key] = value;  // such as content in parts
      }
    }
    if (!extra.empty()) out->set_extra(dump(extra));
  }
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (key == "messages") continue;
      if (key == "tools" && value.is_array()) {
        for (const Json& tool : value) chat.add_tools(dump(tool));
      } else if (key == "template_args" && value.is_object()) {
        chat.set_template_args(dump(value));
      } else if (key == "add_generation_prompt" && value.is_boolean()) {
        chat.set_add_generation_prompt(value.get<bool>());
      } else {
        return wrong(key, "messages, tools, template_args, add_generation_prompt");
      }
    }
  }
  return chat;
}

}  // namespace tandem::cli
