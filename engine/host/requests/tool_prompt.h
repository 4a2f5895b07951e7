// Tools in chats whose template has no variable `tools`: Phi-4-mini's reads them from the system
// message, and Gemma's ignores them.
#pragma once

#include "engine/host/requests/request.h"

namespace tandem {

// The chat with its tools, calls and results in the text of messages, where the template of the
// format prints no others. `source`: of the template. Other chats are returned unchanged.
//   kPhi4   the system message has the member `tools`; calls of the history are in Phi-4's format
//   kGemma  the system message describes the tools; calls are JSON objects, results user messages
ChatPrompt with_tools_in_messages(ChatPrompt chat, const std::string& source, ToolFormat format);

}  // namespace tandem
