// The size of a request, checked before any work is done for it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/host/deployment.h"
#include "engine/host/requests/request.h"

namespace tandem {

// Memory of a waiting request: its texts, its lists and about 1 KiB.
int64_t bytes_of(const GenerateRequest& request);
int64_t bytes_of(const ScoreRequest& request);
int64_t bytes_of(const EmbedRequest& request);
int64_t bytes_of(const TokenizeRequest& request);
int64_t bytes_of(const DetokenizeRequest& request);

// INVALID_ARGUMENT, reason CONTEXT_LENGTH_EXCEEDED, if a text has more bytes than the context can
// hold in tokens of the longest piece, even if the request truncates it. `most` is another bound on
// the bytes: the memory for waiting requests.
absl::Status check_size(const Deployment& deployment, const GenerateRequest& request, int64_t most);
absl::Status check_size(const Deployment& deployment, const ScoreRequest& request, int64_t most);
absl::Status check_size(const Deployment& deployment, const EmbedRequest& request, int64_t most);
absl::Status check_size(const Deployment& deployment, const TokenizeRequest& request, int64_t most);
absl::Status check_size(const Deployment& deployment, const DetokenizeRequest& request,
                        int64_t most);

// The same for a rendered chat.
absl::Status check_text(const Deployment& deployment, absl::string_view field, size_t bytes);

}  // namespace tandem
