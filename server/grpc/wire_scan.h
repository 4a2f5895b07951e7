// Bounds the memory of a message before it is parsed.
//
// Two bytes of input may become an object of 100 bytes, so the size of a message does not bound the
// memory of its parsed form. The scan walks the wire format without allocating.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace tandem {

// The most occurrences of one field in a message, in all its submessages together. Repeated numbers
// have no limit: their memory is proportional to their input.
inline constexpr int64_t kMaxFieldOccurrences = 4096;

// An upper bound of the memory of the parsed message, in bytes. Reads all of `in`, which has
// `length` bytes. INVALID_ARGUMENT: they are not a message of `type`, or a field exceeds
// kMaxFieldOccurrences.
absl::StatusOr<int64_t> scan_message(google::protobuf::io::ZeroCopyInputStream* in, int64_t length,
                                     const google::protobuf::Descriptor& type);

// The error of bytes that are not a message of `type`.
absl::Status malformed_message(int64_t length, const google::protobuf::Descriptor& type);

}  // namespace tandem
