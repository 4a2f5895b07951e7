// Converts results of the Rust library to C++ values and takes ownership of them.
//
// Threading: functions are pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/text/rust/tandem_text.h"

namespace tandem::text_internal {

// Copies the text of `bytes` and frees them.
inline std::string take_string(TandemBytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data), bytes.size);
  tandem_bytes_free(bytes);
  return text;
}

// Status of a call that returned `code`; frees `error`.
inline absl::Status take_status(TandemCode code, TandemBytes error) {
  if (code == TANDEM_OK) return absl::OkStatus();
  const std::string message = take_string(error);
  switch (code) {
    case TANDEM_INVALID_ARGUMENT:
      return absl::InvalidArgumentError(message);
    case TANDEM_NOT_FOUND:
      return absl::NotFoundError(message);
    case TANDEM_EXHAUSTED:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace tandem::text_internal
