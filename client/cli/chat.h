// A conversation in the terminal, for `tandem chat` and `tandem run`.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/request_flags.h"

namespace tandem::cli {

// Before line->parse(): the flags of a conversation.
void add_chat_flags(CommandLine* line, RequestFlags* request_flags);

// After line.parse(): calls `before_connecting`, connects and talks. Ctrl-C ends the program until
// the connection is there. Returns the exit status.
absl::StatusOr<int> chat(CommandLine& line, const RequestFlags& request_flags,
                         const std::function<absl::Status()>& before_connecting);

}  // namespace tandem::cli
