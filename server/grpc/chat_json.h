// Converts a chat to the JSON that chat templates read. Tools, tool calls and extra members keep
// the client's formatting, because a template may print them.
//
// Pure functions. Errors go into `wrong`, by field and without quoting contents; the result is then
// unusable.
#pragma once

#include "engine/base/violations.h"
#include "engine/host/requests/request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

ChatPrompt chat_prompt_from(const v1::Chat& in, Violations* wrong);

}  // namespace tandem
