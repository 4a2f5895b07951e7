// Tools and reasoning in OpenAI's JSON: the fields of a request, and the members of messages and
// deltas. docs/tool_calls.md describes them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/base/violations.h"
#include "server/openai/fields.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

// "tools", "tool_choice" and "parallel_tool_calls".
void tools_from(Fields* in, v1::Chat* out, Violations* wrong);

// What a part of an answer has in addition to text.
struct AnswerDelta {
  std::string reasoning;
  std::vector<v1::ToolCall> calls;  // parts; those of a call are joined

  bool empty() const { return reasoning.empty() && calls.empty(); }
  size_t bytes() const;
  // Adds a part of a call, which is joined to the last one of the same index.
  void add(const v1::ToolCall& part);
  void append(const AnswerDelta& later);
};

// A complete message has no broken calls, and its calls are numbered anew.
void keep_valid_calls(std::vector<v1::ToolCall>* calls);

// The value of "tool_calls". `deltas`: of a stream, where each has its index.
std::string tool_calls_json(const std::vector<v1::ToolCall>& calls, bool deltas);

}  // namespace tandem::openai
