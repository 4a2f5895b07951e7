// Grammars of answers that call tools, in the format of the model: at least one call, each with the
// name of a tool and arguments of its schema.
//
// The grammar begins behind the block of reasoning. It is Lark as llguidance reads it
// (engine/text/grammar.h). Pure functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tool_format.h"

namespace tandem {

struct ToolDefinition {
  std::string name;
  std::string parameters;  // JSON schema
  bool strict = false;     // arguments must satisfy it
  size_t index = 0;        // in the array
  bool flat = false;       // the members are not in `function`
};

// Those of a JSON array in OpenAI's form that have a name. REQUIRES: it is well-formed.
std::vector<ToolDefinition> tool_definitions(const std::string& tools_json);

// Whether the answer begins with a block of reasoning.
enum class ReasoningStart {
  kNone,      // never
  kOptional,  // if the model opens it
  kOpen,      // the prompt has opened it
};

struct GrammarSyntax {
  ToolFormat format = ToolFormat::kNone;
  bool named_arguments = false;  // Mistral: name[ARGS]{...}
  ReasoningTags reasoning;
  ReasoningStart start = ReasoningStart::kNone;
  // The id of a special token with this text; -1: the text is plain.
  std::function<int(std::string_view)> special;
};

// At least one call; one exactly unless `parallel`. Empty: the format has no grammar (kNone).
std::string required_calls_grammar(const GrammarSyntax& syntax,
                                   const std::vector<ToolDefinition>& tools, bool parallel);

// A structural tag: text, and calls with arguments of the tools' schemas; any object for tools that
// are not strict. Empty: the format has no marker before calls.
std::string strict_calls_tag(const GrammarSyntax& syntax, const std::vector<ToolDefinition>& tools);

// `schema`, JSON, behind the reasoning. `whitespace`: a regular expression of what may separate
// JSON tokens; empty: at most 32 characters.
std::string json_after_reasoning(const GrammarSyntax& syntax, const std::string& schema,
                                 const std::string& whitespace);

}  // namespace tandem
