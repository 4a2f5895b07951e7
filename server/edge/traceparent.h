// The W3C trace context of a call, from the header `traceparent`.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// The caller's span.
struct TraceParent {
  std::string trace_id;  // 16 bytes
  std::string span_id;   // 8 bytes
  bool sampled = false;
};
// version-trace-parent-flags in lower-case hexadecimal: 2-32-16-2 digits. nullopt: malformed, or an
// id of zeros, which is invalid.
std::optional<TraceParent> parse_traceparent(absl::string_view header);

}  // namespace tandem
