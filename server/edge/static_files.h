// Files that are compiled into the program, such as those of a web page, as HTTP responses. They
// are the same for every caller and contain no secret.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/edge/http_server.h"

namespace tandem {

// All members outlive the server.
struct StaticFile {
  absl::string_view path;         // of its URL: "/assets/page-1A2B.js"
  absl::string_view type;         // Content-Type
  absl::string_view hash;         // of `bytes`, for the ETag
  absl::string_view bytes, gzip;  // contents, plain and compressed
  bool unchanging;                // the path contains the hash
};

// Null: no file has this path.
const StaticFile* find_file(absl::Span<const StaticFile> files, absl::string_view path);

// Answers GET or HEAD with the file, compressed if the client accepts it. 304 if the client has it.
// The headers restrict a page to scripts, styles and requests of its own origin.
void respond_with(const StaticFile& file, HttpExchange& exchange);

// Whether a value of Accept-Encoding admits gzip.
bool accepts_gzip(absl::string_view accept_encoding);

}  // namespace tandem
