#include "server/openai/field_table.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/base/status.h"

namespace tandem::openai {
namespace {

using google::protobuf::FieldDescriptor;
using enum Effect;
using enum Origin;

// scripts/http_fields reads these rows. Order: as in the page.
constexpr FieldRow kRows[] = {
    // Input.
    {"model", kBoth, kCode, "", kOpenAi,
     "A deployment or adapter from `/v1/models`, or `DEPLOYMENT:ADAPTER`."},
    {"messages", kChat, kCode, "", kOpenAi,
     "Rendered by the chat template of the model. `content` is a string or a list of text parts, "
     "joined by newlines; other parts are refused. The role `developer` becomes `system`. "
     "Arguments "
     "of `tool_calls` are parsed as JSON for the template. Other members reach the template and "
     "have no effect unless it reads them; `audio` and `function_call` are refused."},
    {"prompt", kText, kCode, "", kOpenAi,
     "A string, a list of token ids, or a list of up to 256 of these. Several prompts run at once. "
     "Choice `i * n + j` is choice j of prompt i."},
    {"suffix", kText, kCode, "", kOpenAi,
     "Text after the completion, if the model has fill-in-the-middle tokens. The prompt is a "
     "string, "
     "without `echo`."},
    {"echo", kText, kCode, "", kOpenAi,
     "The text begins with the prompt. With `logprobs`, the tokens begin with those of the prompt: "
     "each with its own log-probability before sampling parameters, the first with null. With "
     "`max_tokens` 0 nothing is generated."},
    {"echo", kChat, kOnly, "false", kVllm, ""},
    {"chat_template_kwargs", kChat, kCode, "", kVllm,
     "An object: additional variables of the template."},
    {"add_generation_prompt", kChat, kCode, "", kVllm,
     "Ends the prompt with the header of an assistant message. Default: true."},
    {"add_special_tokens", kText, kSet, "add_special_tokens", kVllm, ""},
    {"add_special_tokens", kChat, kOnly, "false", kVllm, "The template writes the special tokens."},
    {"continue_final_message", kChat, kOnly, "false", kVllm, ""},
    {"truncate_prompt_tokens", kBoth, kSet, "truncate_prompt_tokens", kVllm, ""},

    // Length and end.
    {"max_tokens", kBoth, kCode, "", kOpenAi,
     "`max_new_tokens`. Unset or -1: the default of the model's files, else the rest of the "
     "context. 0 is allowed with `echo`."},
    {"max_completion_tokens", kChat, kCode, "", kOpenAi, "The same."},
    {"n_predict", kBoth, kCode, "", kLlama, "The same."},
    {"min_tokens", kBoth, kSet, "min_new_tokens", kVllm, ""},
    {"stop", kBoth, kCode, "", kOpenAi, "`stop_sequences`: a string, or up to 64 strings."},
    {"stop_token_ids", kBoth, kSet, "stop_token_ids", kVllm, ""},
    {"include_stop_str_in_output", kBoth, kSet, "include_stop_sequence", kVllm, ""},
    {"ignore_eos", kBoth, kSet, "ignore_eos", kVllm, ""},

    // Sampling. Unset: generation_config.json of the model, else greedy.
    {"temperature", kBoth, kSet, "temperature", kOpenAi,
     "Unset: the model's `generation_config.json`, else 0 (greedy). OpenAI's default is 1."},
    {"top_p", kBoth, kSet, "top_p", kOpenAi, ""},
    {"top_k", kBoth, kSet, "top_k", kVllm, "-1 means off, as 0."},
    {"min_p", kBoth, kSet, "min_p", kVllm, ""},
    {"typical_p", kBoth, kSet, "typical_p", kLlama, ""},
    {"presence_penalty", kBoth, kSet, "presence_penalty", kOpenAi, ""},
    {"frequency_penalty", kBoth, kSet, "frequency_penalty", kOpenAi, ""},
    {"repetition_penalty", kBoth, kSet, "repetition_penalty", kVllm, ""},
    {"repeat_penalty", kBoth, kSet, "repetition_penalty", kLlama,
     "It covers the whole text, as `repeat_last_n` -1 does."},
    {"repeat_last_n", kBoth, kCode, "", kLlama, "-1; any value if `repeat_penalty` is unset or 1."},
    {"logit_bias", kBoth, kCode, "", kOpenAi,
     "An object `{\"ID\": BIAS}` or a list `[[ID, BIAS], ...]`. A bias of `false` bans the token."},
    {"seed", kBoth, kCode, "", kOpenAi,
     "A string of digits is accepted too, since JavaScript numbers have 53 bits. -1 means unset."},
    {"n", kBoth, kSet, "n", kOpenAi, ""},
    {"best_of", kText, kCode, "", kOpenAi,
     "Generates this many choices, up to 16, and returns the `n` with the highest mean "
     "log-probability per token. Not with `stream`."},

    // Output.
    {"stream", kBoth, kCode, "", kOpenAi, "Server-sent events, ended by `[DONE]`."},
    {"stream_options", kBoth, kCode, "", kOpenAi,
     "`include_usage` adds an event with the usage before `[DONE]`. `continuous_usage_stats` "
     "(vLLM) "
     "adds the usage so far to every event. `include_obfuscation`: `false` only."},
    {"logprobs", kChat, kCode, "", kOpenAi,
     "A boolean. Values are after sampling parameters; `tandem.raw_logprobs` gives those before."},
    {"logprobs", kText, kCode, "", kOpenAi,
     "The number of alternatives, up to 20. A token that is not valid text is shown as bytes "
     "(`bytes:\\xc3`)."},
    {"n_probs", kText, kCode, "", kLlama, "The same as `logprobs`."},
    {"top_logprobs", kChat, kCode, "", kOpenAi, "Up to 20 alternatives, with `logprobs`."},
    {"skip_special_tokens", kBoth, kSet, "skip_special_tokens", kVllm, ""},
    {"spaces_between_special_tokens", kBoth, kOnly, "true", kVllm, ""},
    {"prompt_logprobs", kBoth, kRefuse, "", kVllm, "`echo` with `logprobs` gives them."},
    {"return_tokens_as_token_ids", kBoth, kOnly, "false", kVllm, ""},
    {"return_token_ids", kBoth, kOnly, "false", kVllm, ""},
    {"return_tokens", kBoth, kOnly, "false", kLlama, ""},
    {"post_sampling_probs", kBoth, kOnly, "false|true", kLlama,
     "Probabilities are those after sampling parameters."},

    // Structured output, tools, reasoning.
    {"response_format", kChat, kCode, "", kOpenAi,
     "`text`, `json_object`, `json_schema` or `structural_tag`; see [structured "
     "output](structured_output.md)."},
    {"response_format", kText, kCode, "", kVllm,
     "`text`, `json_object`, `json_schema` or `structural_tag`; see [structured "
     "output](structured_output.md)."},
    {"structured_outputs", kBoth, kCode, "", kVllm,
     "`json`, `json_object`, `regex`, `choice`, `grammar`, `structural_tag`, "
     "`whitespace_pattern`."},
    {"guided_json", kBoth, kCode, "", kVllm, "As `structured_outputs.json`."},
    {"guided_regex", kBoth, kCode, "", kVllm, "As `structured_outputs.regex`."},
    {"guided_choice", kBoth, kCode, "", kVllm, "As `structured_outputs.choice`."},
    {"guided_grammar", kBoth, kCode, "", kVllm, "As `structured_outputs.grammar`."},
    {"guided_whitespace_pattern", kBoth, kCode, "", kVllm,
     "As `structured_outputs.whitespace_pattern`."},
    {"guided_decoding_backend", kBoth, kIgnore, "", kVllm, ""},
    {"structural_tag", kBoth, kRefuse, "", kVllm, "Use `structured_outputs`."},
    {"json_schema", kBoth, kCode, "", kLlama, "A JSON schema."},
    {"grammar", kBoth, kCode, "", kLlama, "A grammar in GBNF or Lark."},
    {"tools", kChat, kCode, "", kOpenAi, "See [tool calls](tool_calls.md)."},
    {"tool_choice", kChat, kCode, "", kOpenAi,
     "`auto`, `none` (the tools are left out), `required`, a named tool, or `allowed_tools`."},
    {"parallel_tool_calls", kChat, kCode, "", kOpenAi,
     "`false`: calls after the first are dropped."},
    {"functions", kChat, kRefuse, "", kOpenAi, "Deprecated by OpenAI; use `tools`."},
    {"function_call", kChat, kRefuse, "", kOpenAi, "Deprecated by OpenAI; use `tool_choice`."},
    {"reasoning_effort", kChat, kRefuse, "", kOpenAi, ""},
    {"verbosity", kChat, kRefuse, "", kOpenAi, ""},
    {"include_reasoning", kChat, kOnly, "true", kVllm, ""},

    // What this server does not do.
    {"modalities", kChat, kOnly, "[\"text\"]", kOpenAi, ""},
    {"audio", kChat, kRefuse, "", kOpenAi, ""},
    {"prediction", kChat, kRefuse, "", kOpenAi, ""},
    {"web_search_options", kChat, kRefuse, "", kOpenAi, ""},
    {"moderation", kChat, kRefuse, "", kOpenAi, ""},
    {"store", kChat, kOnly, "false", kOpenAi, ""},
    {"service_tier", kChat, kOnly, "\"auto\"|\"default\"", kOpenAi, ""},
    {"use_beam_search", kBoth, kOnly, "false", kVllm, "Use `tandem.beam`."},
    {"length_penalty", kBoth, kOnly, "1", kVllm, "Use `tandem.beam`."},
    {"allowed_token_ids", kBoth, kOnly, "[]", kVllm, ""},
    {"bad_words", kBoth, kOnly, "[]", kVllm, "Use `tandem.bad_token_ids`."},
    {"logits_processors", kBoth, kOnly, "[]", kVllm, ""},
    {"chat_template", kChat, kRefuse, "", kVllm, "The model's own template is used."},
    {"documents", kChat, kOnly, "[]", kVllm, ""},
    {"priority", kBoth, kOnly, "0", kVllm,
     "Use `tandem.priority`, in which larger values run earlier."},
    {"cache_salt", kBoth, kRefuse, "", kVllm, ""},
    {"kv_transfer_params", kBoth, kRefuse, "", kVllm, ""},
    {"vllm_xargs", kBoth, kRefuse, "", kVllm, ""},
    {"mm_processor_kwargs", kBoth, kRefuse, "", kVllm, ""},
    {"thinking_token_budget", kBoth, kRefuse, "", kVllm, ""},
    {"samplers", kBoth, kRefuse, "", kLlama, ""},
    {"dynatemp_range", kBoth, kOnly, "0", kLlama, ""},
    {"top_n_sigma", kBoth, kOnly, "-1|0", kLlama, ""},
    {"xtc_probability", kBoth, kOnly, "0", kLlama, ""},
    {"dry_multiplier", kBoth, kOnly, "0", kLlama, ""},
    {"mirostat", kBoth, kOnly, "0", kLlama, ""},
    {"min_keep", kBoth, kOnly, "0|1", kLlama, ""},
    {"n_indent", kBoth, kOnly, "0", kLlama, ""},
    {"t_max_predict_ms", kBoth, kOnly, "0|-1", kLlama, "Use `tandem.time_limit_seconds`."},
    {"response_fields", kBoth, kOnly, "[]", kLlama, ""},
    {"lora", kBoth, kOnly, "[]", kLlama, "Use `model` or `tandem.adapter`."},

    // Without effect on the answer.
    {"user", kBoth, kIgnore, "", kOpenAi, "Clients are identified by their bearer tokens."},
    {"metadata", kChat, kIgnore, "", kOpenAi, ""},
    {"safety_identifier", kChat, kIgnore, "", kOpenAi, ""},
    {"prompt_cache_key", kChat, kIgnore, "", kOpenAi, ""},
    {"prompt_cache_options", kChat, kIgnore, "", kOpenAi, ""},
    {"prompt_cache_retention", kChat, kIgnore, "", kOpenAi, ""},
    {"dynatemp_exponent", kBoth, kIgnore, "", kLlama, "No effect at `dynatemp_range` 0."},
    {"xtc_threshold", kBoth, kIgnore, "", kLlama, "No effect at `xtc_probability` 0."},
    {"dry_base", kBoth, kIgnore, "", kLlama, "No effect at `dry_multiplier` 0."},
    {"dry_allowed_length", kBoth, kIgnore, "", kLlama, "No effect at `dry_multiplier` 0."},
    {"dry_penalty_last_n", kBoth, kIgnore, "", kLlama, "No effect at `dry_multiplier` 0."},
    {"dry_sequence_breakers", kBoth, kIgnore, "", kLlama, "No effect at `dry_multiplier` 0."},
    {"mirostat_tau", kBoth, kIgnore, "", kLlama, "No effect at `mirostat` 0."},
    {"mirostat_eta", kBoth, kIgnore, "", kLlama, "No effect at `mirostat` 0."},
    {"cache_prompt", kBoth, kIgnore, "", kLlama, "Prompts are always cached."},
    {"id_slot", kBoth, kIgnore, "", kLlama, ""},
    {"n_keep", kBoth, kIgnore, "", kLlama, "The server never shifts a context."},
    {"n_discard", kBoth, kIgnore, "", kLlama, "The server never shifts a context."},
    {"timings_per_token", kBoth, kIgnore, "", kLlama, ""},
    {"return_progress", kBoth, kIgnore, "", kLlama, ""},

    // Responses.
    {"model", kResponses, kSet, "model", kOpenAi, ""},
    {"input", kResponses, kCode, "", kOpenAi,
     "A string, or items: messages of text parts, `function_call`, `function_call_output`. Items "
     "of "
     "type `reasoning` are ignored; others are refused."},
    {"instructions", kResponses, kCode, "", kOpenAi, "A system message before the input."},
    {"max_output_tokens", kResponses, kSet, "max_tokens", kOpenAi, ""},
    {"temperature", kResponses, kSet, "temperature", kOpenAi, ""},
    {"top_p", kResponses, kSet, "top_p", kOpenAi, ""},
    {"stream", kResponses, kCode, "", kOpenAi, "Events with the types and order of OpenAI."},
    {"stream_options", kResponses, kIgnore, "", kOpenAi, ""},
    {"tools", kResponses, kCode, "", kOpenAi, "Type `function` only; as in chat completions."},
    {"tool_choice", kResponses, kCode, "", kOpenAi, "As in chat completions."},
    {"parallel_tool_calls", kResponses, kSet, "parallel_tool_calls", kOpenAi, ""},
    {"text", kResponses, kCode, "", kOpenAi, "`format` is `response_format` of chat completions."},
    {"reasoning", kResponses, kCode, "", kOpenAi,
     "`effort` is `reasoning_effort` of chat completions. `summary` is ignored."},
    {"store", kResponses, kOnly, "false", kOpenAi, "Nothing is stored."},
    {"previous_response_id", kResponses, kRefuse, "", kOpenAi, "Send the whole conversation."},
    {"conversation", kResponses, kRefuse, "", kOpenAi, "Send the whole conversation."},
    {"prompt", kResponses, kRefuse, "", kOpenAi, ""},
    {"background", kResponses, kOnly, "false", kOpenAi, ""},
    {"background_options", kResponses, kRefuse, "", kOpenAi, ""},
    {"include", kResponses, kOnly, "[]|[\"reasoning.encrypted_content\"]", kOpenAi,
     "No content is encrypted."},
    {"truncation", kResponses, kOnly, "\"disabled\"", kOpenAi, ""},
    {"service_tier", kResponses, kOnly, "\"auto\"|\"default\"", kOpenAi, ""},
    {"top_logprobs", kResponses, kOnly, "0", kOpenAi, ""},
    {"max_tool_calls", kResponses, kRefuse, "", kOpenAi, ""},
    {"context_management", kResponses, kOnly, "[]", kOpenAi, ""},
    {"moderation", kResponses, kRefuse, "", kOpenAi, ""},
    {"image", kResponses, kRefuse, "", kOpenAi, ""},
    {"access_programs", kResponses, kRefuse, "", kOpenAi, ""},
    {"metadata", kResponses, kIgnore, "", kOpenAi, ""},
    {"user", kResponses, kIgnore, "", kOpenAi, "Clients are identified by their bearer tokens."},
    {"safety_identifier", kResponses, kIgnore, "", kOpenAi, ""},
    {"prompt_cache_key", kResponses, kIgnore, "", kOpenAi, ""},
    {"prompt_cache_options", kResponses, kIgnore, "", kOpenAi, ""},
    {"prompt_cache_retention", kResponses, kIgnore, "", kOpenAi, ""},

    // Messages.
    {"model", kMessages, kSet, "model", kAnthropic, ""},
    {"messages", kMessages, kCode, "", kAnthropic,
     "`content` is a string or blocks of type `text`, `thinking`, `tool_use` and `tool_result`. "
     "Other types are refused."},
    {"system", kMessages, kCode, "", kAnthropic, "A string or text blocks: a system message."},
    {"max_tokens", kMessages, kSet, "max_tokens", kAnthropic,
     "Unset: as in chat completions. Anthropic requires it."},
    {"temperature", kMessages, kSet, "temperature", kAnthropic, ""},
    {"top_p", kMessages, kSet, "top_p", kAnthropic, ""},
    {"top_k", kMessages, kSet, "top_k", kAnthropic, ""},
    {"stop_sequences", kMessages, kSet, "stop", kAnthropic, ""},
    {"stream", kMessages, kCode, "", kAnthropic, "Events with the types and order of Anthropic."},
    {"tools", kMessages, kCode, "", kAnthropic, "Type `custom` only; as in chat completions."},
    {"tool_choice", kMessages, kCode, "", kAnthropic,
     "`auto`, `any`, `tool` or `none`; as in chat completions."},
    {"thinking", kMessages, kCode, "", kAnthropic,
     "`disabled` only. It sets `enable_thinking` of the chat template to false."},
    {"service_tier", kMessages, kOnly, "\"auto\"|\"standard_only\"", kAnthropic, ""},
    {"container", kMessages, kRefuse, "", kAnthropic, ""},
    {"diagnostics", kMessages, kRefuse, "", kAnthropic, ""},
    {"speed", kMessages, kRefuse, "", kAnthropic, ""},
    {"context_management", kMessages, kRefuse, "", kAnthropic, ""},
    {"inference_geo", kMessages, kRefuse, "", kAnthropic, ""},
    {"mcp_servers", kMessages, kOnly, "[]", kAnthropic, ""},
    {"output_config", kMessages, kRefuse, "", kAnthropic, ""},
    {"output_format", kMessages, kRefuse, "", kAnthropic, ""},
    {"betas", kMessages, kIgnore, "", kAnthropic, ""},
    {"user_profile_id", kMessages, kIgnore, "", kAnthropic,
     "Clients are identified by their bearer tokens."},
    {"workspace_id", kMessages, kIgnore, "", kAnthropic, ""},
    {"metadata", kMessages, kIgnore, "", kAnthropic, ""},
    {"cache_control", kMessages, kIgnore, "", kAnthropic, "Prompts are always cached."},

    // Embeddings.
    {"model", kEmbeddings, kCode, "", kOpenAi,
     "A deployment. Unset: the only one, where there is one."},
    {"input", kEmbeddings, kCode, "", kOpenAi,
     "A string, a list of token ids, or a list of up to 2048 of these."},
    {"encoding_format", kEmbeddings, kCode, "", kOpenAi,
     "`float`, or `base64`: little-endian 32-bit floats."},
    {"dimensions", kEmbeddings, kCode, "", kOpenAi,
     "The first dimensions only, normalized again. Up to the width of its embeddings."},
    {"user", kEmbeddings, kIgnore, "", kOpenAi, "Clients are identified by their bearer tokens."},
    {"normalize", kEmbeddings, kCode, "", kVllm,
     "Length 1. Unset: as `modules.json` of the model says, else `true`."},
    {"add_special_tokens", kEmbeddings, kCode, "", kVllm, "Default: true."},
    {"priority", kEmbeddings, kCode, "", kVllm, "Larger runs earlier, unlike in vLLM."},
    {"truncate_prompt_tokens", kEmbeddings, kRefuse, "", kVllm, ""},
    {"embed_dtype", kEmbeddings, kOnly, "\"float32\"", kVllm, ""},
    {"endianness", kEmbeddings, kOnly, "\"native\"|\"little\"", kVllm, ""},
    {"messages", kEmbeddings, kRefuse, "", kVllm, ""},
    {"embd_normalize", kEmbeddings, kOnly, "2", kLlama, "2 is the Euclidean norm."},
    {"prefix", kEmbeddings, kCode, "", kTandem, "Put before each text, such as an instruction."},
    {"prompt_name", kEmbeddings, kCode, "", kTandem,
     "A prompt of `config_sentence_transformers.json`, put before each text. Not with `prefix`."},

    // Reranking.
    {"model", kRerank, kCode, "", kJina, "A deployment. Unset: the only one, where there is one."},
    {"query", kRerank, kCode, "", kJina, "A string."},
    {"documents", kRerank, kCode, "", kJina, "Up to 1024 strings, or objects `{\"text\": ...}`."},
    {"top_n", kRerank, kCode, "", kJina, "Unset: all documents."},
    {"return_documents", kRerank, kCode, "", kJina, "Default: false."},
    {"truncation", kRerank, kOnly, "false", kJina, ""},
    {"max_tokens_per_doc", kRerank, kRefuse, "", kCohere, ""},
    {"max_chunks_per_doc", kRerank, kRefuse, "", kCohere, ""},
    {"rank_fields", kRerank, kRefuse, "", kCohere, ""},
    {"truncate_prompt_tokens", kRerank, kRefuse, "", kVllm, ""},
    {"user", kRerank, kIgnore, "", kVllm, "Clients are identified by their bearer tokens."},
    {"instruction", kRerank, kCode, "", kTandem, "What makes a document relevant."},
    {"priority", kRerank, kCode, "", kVllm, "Larger runs earlier, unlike in vLLM."},

    // Of this server.
    {"chat_template_kwargs", kResponses, kSet, "chat_template_kwargs", kVllm, ""},
    {"tandem", kResponses | kMessages, kSet, "tandem", kTandem, "As in chat completions."},
    {"request_id", kBoth, kSet, "request_id", kVllm, ""},
    {"extra_body", kBoth, kCode, "", kTandem,
     "An object whose members count as members of the request."},
    {"tandem", kBoth, kCode, "", kTandem,
     "Method, contract and other fields of `GenerateRequest`; see [HTTP "
     "API](http_api.md#the-field-tandem)."},
};

// Whether `value` is one of the values in `allowed`. Numbers are compared as numbers.
bool is_one_of(absl::string_view value, absl::string_view allowed) {
  double number = 0;
  const bool is_number = absl::SimpleAtod(value, &number);
  for (const absl::string_view one : absl::StrSplit(allowed, '|')) {
    double other = 0;
    if (value == one || (is_number && absl::SimpleAtod(one, &other) && number == other)) {
      return true;
    }
  }
  return false;
}

void check_only(const FieldRow& row, Fields* in, Violations* wrong) {
  const auto value = in->any(row.name);
  if (!value.has_value()) return;
  if (row.effect == kOnly) {
    const bool list = kind_of(*value) == JsonKind::kArray;
    const std::string compact =
        list ? absl::StrReplaceAll(*value, {{" ", ""}, {"\n", ""}}) : std::string(*value);
    if (is_one_of(compact, row.target)) return;
  }
  const JsonKind kind = kind_of(*value);
  const bool is_short = kind == JsonKind::kNumber || kind == JsonKind::kBool;
  const std::string allowed =
      row.target.empty() ? ""
                         : absl::StrCat(absl::StrReplaceAll(row.target, {{"|", ", "}}), " or ");
  wrong->add(out_of_range(in->path(row.name), is_short ? shown(*value) : kind_name(kind),
                          absl::StrCat(allowed, "unset (not supported by this server)")));
}

void set_ids(const FieldRow& row, const FieldDescriptor* field, Fields* in,
             v1::GenerateRequest* out, Violations* wrong) {
  for (const absl::string_view id : in->array(row.name)) {
    int32_t number = 0;
    if (kind_of(id) != JsonKind::kNumber || !absl::SimpleAtoi(id, &number)) {
      return wrong->add(out_of_range(in->path(row.name), "an entry that is not a token id",
                                     "an array of token ids"));
    }
    out->GetReflection()->AddInt32(out, field, number);
  }
}

void set(const FieldRow& row, Fields* in, v1::GenerateRequest* out, FieldNames* names,
         Violations* wrong) {
  const auto* const field =
      v1::GenerateRequest::descriptor()->FindFieldByName(std::string(row.target));
  const auto* const reflection = out->GetReflection();
  if (!in->any(row.name).has_value()) return;
  const bool given = field->is_repeated() ? reflection->FieldSize(*out, field) > 0
                                          : reflection->HasField(*out, field);
  if (given) {
    const auto name = names->find(row.target);
    return wrong->add(out_of_range(
        in->path(row.name), "set",
        absl::StrCat("unset; ",
                     name == names->end() ? absl::StrCat("tandem.", row.target) : name->second,
                     " sets the same")));
  }
  (*names)[std::string(row.target)] = std::string(row.name);
  if (field->is_repeated()) return set_ids(row, field, in, out, wrong);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (const auto x = in->number(row.name)) reflection->SetDouble(out, field, *x);
      return;
    case FieldDescriptor::CPPTYPE_INT32:
      if (auto x = in->integer(row.name)) {
        if (row.target == "top_k" && *x == -1) x = 0;
        reflection->SetInt32(out, field, *x);
      }
      return;
    case FieldDescriptor::CPPTYPE_BOOL:
      if (const auto x = in->boolean(row.name)) reflection->SetBool(out, field, *x);
      return;
    default:
      if (const auto x = in->string(row.name)) reflection->SetString(out, field, *x);
      return;
  }
}

}  // namespace

absl::Span<const FieldRow> field_rows() { return kRows; }

void translate_fields(Api api, Fields* in,
                      absl::FunctionRef<void(absl::string_view, absl::string_view)> member,
                      Violations* wrong) {
  for (const FieldRow& row : kRows) {
    if ((row.apis & api) == 0) continue;
    if (row.effect == kSet) {
      if (const auto value = in->any(row.name)) member(row.target, *value);
    } else if (row.effect == kIgnore) {
      in->ignore(row.name);
    } else if (row.effect != kCode) {
      check_only(row, in, wrong);
    }
  }
}

void apply_fields(Api api, Fields* in, v1::GenerateRequest* out, FieldNames* names,
                  Violations* wrong) {
  for (const FieldRow& row : kRows) {
    if ((row.apis & api) == 0) continue;
    switch (row.effect) {
      case kSet:
        set(row, in, out, names, wrong);
        break;
      case kOnly:
      case kRefuse:
        check_only(row, in, wrong);
        break;
      case kIgnore:
        in->ignore(row.name);
        break;
      case kCode:
        break;
    }
  }
}

}  // namespace tandem::openai
