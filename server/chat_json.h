// A chat as the JSON that templates take. Tools, tool calls and extra members go through as the
// client wrote them, because a template may print them.
//
// Pure functions. Errors name the field and never quote contents.
#pragma once

#include "absl/status/statusor.h"
#include "engine/host/request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

absl::StatusOr<ChatPrompt> chat_prompt_from(const v1::Chat& in);

}  // namespace tandem
