// Converts messages to and from gRPC's byte buffers.
//
// The services read raw buffers, because gRPC replies to a request that protobuf cannot parse
// (malformed bytes, a string that is not UTF-8) with UNIMPLEMENTED and no message. The buffers also
// show the size of a request before it is parsed.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/status/status.h"
#include "engine/base/memory_account.h"
#include "engine/base/status.h"
#include "server/grpc/call_memory.h"
#include "server/grpc/wire_scan.h"

namespace tandem {

// scan_message() of a buffer.
inline absl::StatusOr<int64_t> scan_buffer(const grpc::ByteBuffer& buffer,
                                           const google::protobuf::Descriptor& type) {
  grpc::ByteBuffer copy(buffer);
  grpc::ProtoBufferReader reader(&copy);
  return scan_message(&reader, static_cast<int64_t>(buffer.Length()), type);
}

// INVALID_ARGUMENT if `buffer` does not hold a Message, or a field exceeds the limits of
// wire_scan.h. The buffer and the message are charged to `memory`, if given, before it is parsed.
template <class Message>
absl::Status parse_message(const grpc::ByteBuffer& buffer, Message* out,
                           MemoryAccount::Charge* memory = nullptr) {
  const auto length = static_cast<int64_t>(buffer.Length());
  TANDEM_ASSIGN_OR_RETURN(const int64_t parsed, scan_buffer(buffer, *Message::descriptor()));
  if (memory != nullptr) {
    TANDEM_RETURN_IF_ERROR(memory->try_resize(kCallBytes + length + kCopiesOfRequest * parsed));
  }
  grpc::ByteBuffer copy(buffer);  // shares the bytes; reading consumes the handle
  if (grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&copy, out).ok()) {
    return absl::OkStatus();
  }
  return malformed_message(length, *Message::descriptor());
}

template <class Message>
grpc::ByteBuffer to_buffer(const Message& message) {
  grpc::ByteBuffer buffer;
  bool own = false;
  // Fails only without memory.
  (void)grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(message, &buffer, &own);
  return buffer;
}

}  // namespace tandem
