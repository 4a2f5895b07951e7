// Reason phrases of HTTP (RFC 9110).
#pragma once

namespace tandem {

// "Not Found". "Error" for a status that this server does not send.
const char* http_reason(int status);

}  // namespace tandem
