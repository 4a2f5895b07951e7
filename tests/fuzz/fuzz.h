// What fuzz targets share. How they are built and run: cmake/Fuzz.cmake.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tandem::fuzz {

// Ends the process where `ok` is false, so that libFuzzer keeps the input.
inline void check(bool ok, const char* what = "check failed", std::string_view more = "") {
  if (ok) return;
  std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(more.size()), more.data());
  std::abort();
}

// What every refused input gets: an error that is the input's fault, in few words.
inline void check_refusal(const absl::Status& status) {
  const std::string text = status.ToString();
  check(status.code() == absl::StatusCode::kInvalidArgument, "another error", text);
  check(!status.message().empty() && status.message().size() < 4000, "a message of no use", text);
}

inline std::string text_of(const uint8_t* data, size_t size) {
  return std::string(reinterpret_cast<const char*>(data), size);
}

// An input for several files: its parts between NUL bytes, empty where there are fewer.
inline std::vector<std::string> parts_of(const uint8_t* data, size_t size, size_t n) {
  std::vector<std::string> parts(n);
  std::string_view left(reinterpret_cast<const char*>(data), size);
  for (size_t i = 0; i < n; ++i) {
    const size_t end = i + 1 < n ? left.find('\0') : std::string_view::npos;
    parts[i] = left.substr(0, end);
    if (end == std::string_view::npos) break;
    left.remove_prefix(end + 1);
  }
  return parts;
}

}  // namespace tandem::fuzz
