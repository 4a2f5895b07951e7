// W3C trace contexts: an accepted one has ids of their sizes that are not zero, and is the header
// again when it is written.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "server/edge/traceparent.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::fuzz::check;
  const std::string text = tandem::fuzz::text_of(data, size);
  const auto parent = tandem::parse_traceparent(text);
  if (!parent.has_value()) return 0;
  const auto zero = [](char c) { return c == 0; };
  check(parent->trace_id.size() == 16 && !std::ranges::all_of(parent->trace_id, zero), "trace id");
  check(parent->span_id.size() == 8 && !std::ranges::all_of(parent->span_id, zero), "span id");
  const std::string ids =
      absl::BytesToHexString(parent->trace_id) + "-" + absl::BytesToHexString(parent->span_id);
  check(text.size() == 55 && text.substr(3, 49) == ids, "other ids", text);
  check(!absl::StartsWith(text, "ff-"), "a version that is invalid", text);
  check(parent->sampled == (std::string("13579bdf").find(text.back()) != std::string::npos),
        "another flag", text);
  return 0;
}
