#include "server/edge/traceparent.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"

namespace tandem {
namespace {

bool is_digit(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
}

bool all_zero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

}  // namespace

std::optional<TraceParent> parse_traceparent(absl::string_view header) {
  // version 2, trace id 32, parent id 16, flags 2 digits
  if (header.size() != 55 || absl::StartsWith(header, "ff")) return std::nullopt;
  for (const size_t dash : {size_t{2}, size_t{35}, size_t{52}}) {
    if (header[dash] != '-') return std::nullopt;
  }
  const auto digits = [&](size_t from, size_t count) { return header.substr(from, count); };
  for (const absl::string_view part :
       {digits(0, 2), digits(3, 32), digits(36, 16), digits(53, 2)}) {
    if (!std::all_of(part.begin(), part.end(), is_digit)) return std::nullopt;
  }
  TraceParent out;
  out.trace_id = absl::HexStringToBytes(digits(3, 32));
  out.span_id = absl::HexStringToBytes(digits(36, 16));
  out.sampled = (absl::HexStringToBytes(digits(53, 2))[0] & 1) != 0;
  if (all_zero(out.trace_id) || all_zero(out.span_id)) return std::nullopt;
  return out;
}

}  // namespace tandem
