// Converts the engine's results to API messages. Pure functions.
#pragma once

#include <functional>
#include <string>

#include "engine/host/requests/request.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/models.pb.h"

namespace tandem {

v1::Method method_to_proto(const std::string& method);
v1::Contract contract_to_proto(Contract contract);
v1::FinishReason finish_reason_to_proto(FinishReason reason);
v1::Source source_to_proto(Source source);

// The bytes of a token, not necessarily valid UTF-8. Empty function: no texts and bytes.
using TokenBytes = std::function<std::string(Token)>;

void token_to_proto(const TokenInfo& in, const TokenBytes& bytes_of, v1::Token* out);
v1::ToolCall call_to_proto(const CallPart& in);
v1::Started started_to_proto(const Started& in);
// `time_to_first_token`: seconds; 0 without tokens.
v1::Finished finished_to_proto(const Finished& in, double time_to_first_token);
void usage_to_proto(const Usage& in, v1::Usage* out);
v1::Model model_to_proto(const DeploymentInfo& in);

// `text` with ill-formed sequences replaced by U+FFFD.
std::string to_valid_utf8(std::string text);

}  // namespace tandem
