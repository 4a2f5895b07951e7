// What a request weighs before it is tokenized, and whether a context could hold so much: looked at
// before anything is done for it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/host/deployment.h"
#include "engine/host/requests/request.h"

namespace tandem {

// Memory that a request takes while it waits: its texts, lists and about 1 KiB.
int64_t bytes_of(const GenerateRequest& request);
int64_t bytes_of(const ScoreRequest& request);
int64_t bytes_of(const TokenizeRequest& request);
int64_t bytes_of(const DetokenizeRequest& request);

// INVALID_ARGUMENT, reason CONTEXT_LENGTH_EXCEEDED, for more bytes of text than the model's context
// has tokens of the vocabulary's longest piece: so much, truncated or not, is never looked at.
// `most` is a further bound on bytes, that of the memory for what waits.
absl::Status check_size(const Deployment& deployment, const GenerateRequest& request, int64_t most);
absl::Status check_size(const Deployment& deployment, const ScoreRequest& request, int64_t most);
absl::Status check_size(const Deployment& deployment, const TokenizeRequest& request, int64_t most);
absl::Status check_size(const Deployment& deployment, const DetokenizeRequest& request,
                        int64_t most);

// The same for a text of which the bytes are known now: a rendered chat.
absl::Status check_text(const Deployment& deployment, absl::string_view field, size_t bytes);

}  // namespace tandem
