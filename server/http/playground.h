// The playground: a web page for chats, comparisons and scores (client/web). Its files are compiled
// into the server by cmake/Playground.cmake.
#pragma once

#include "absl/types/span.h"
#include "server/edge/static_files.h"

namespace tandem {

// Empty in a build without Node.js.
absl::Span<const StaticFile> playground_files();

}  // namespace tandem
