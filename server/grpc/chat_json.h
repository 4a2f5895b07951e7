// A chat as the JSON that templates take. Tools, tool calls and extra members go through as the
// client wrote them, because a template may print them.
//
// Pure functions. What is wrong goes into `wrong`, by field and without quoting contents;
// the result is then of no use.
#pragma once

#include "engine/base/violations.h"
#include "engine/host/request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

ChatPrompt chat_prompt_from(const v1::Chat& in, Violations* wrong);

}  // namespace tandem
