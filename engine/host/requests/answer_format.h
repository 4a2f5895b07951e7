// How answers to chats become content, reasoning and tool calls: by the chat template of the model
// that writes, or by the settings of the deployment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/config.h"
#include "engine/base/ids.h"
#include "engine/host/models/loaded_model.h"
#include "engine/host/requests/request.h"
#include "engine/text/answer_parser.h"
#include "engine/text/tool_format.h"

namespace tandem {

// Of a model in a deployment.
struct AnswerFormat {
  ToolFormat tools = ToolFormat::kNone;
  bool named_arguments = false;  // Mistral: name[ARGS]{...}
  ReasoningTags reasoning;
  std::vector<Token> markers;  // special tokens that the parser must see
};
// `chat`: whose template the prompts are rendered with; may be null.
AnswerFormat answer_format_of(const DeploymentConfig& config, const ChatTemplate* chat,
                              const Tokenizer& tokenizer);

// Of one request.
struct AnswerPlan {
  AnswerSyntax syntax;
  bool in_reasoning = false;   // the prompt opens the reasoning
  std::vector<Token> markers;  // as in AnswerFormat
  uint64_t id_seed = 0;        // of the ids of calls
};

// nullopt: the answer is text only. `prompt_end`: the last tokens of the prompt.
std::optional<AnswerPlan> plan_answer(const AnswerFormat& format, const GenerateRequest& request,
                                      const Tokenizer& tokenizer,
                                      absl::Span<const Token> prompt_end);

// The id of a call: 9 letters and digits, as Mistral's templates require.
std::string call_id(uint64_t seed, int choice, int index);

}  // namespace tandem
