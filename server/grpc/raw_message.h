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
#include "absl/strings/str_cat.h"
#include "engine/base/memory_account.h"
#include "engine/base/status.h"
#include "server/grpc/call_memory.h"
#include "server/grpc/wire_scan.h"

namespace tandem {

// INVALID_ARGUMENT if `buffer` does not hold a Message, or a field exceeds the limits of
// wire_scan.h. The buffer and the message are charged to `memory`, if given, before it is parsed.
template <class Message>
absl::Status parse_message(const grpc::ByteBuffer& buffer, Message* out,
                           MemoryAccount::Charge* memory = nullptr) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t parsed, scan_message(buffer, *Message::descriptor()));
  if (memory != nullptr) {
    TANDEM_RETURN_IF_ERROR(memory->try_resize(kCallBytes + static_cast<int64_t>(buffer.Length()) +
                                              kCopiesOfRequest * parsed));
  }
  grpc::ByteBuffer copy(buffer);  // shares the bytes; reading consumes the handle
  if (grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&copy, out).ok()) {
    return absl::OkStatus();
  }
  return with_reason(out_of_range("request",
                                  absl::StrCat(buffer.Length(), " bytes that are not a ",
                                               std::string(Message::descriptor()->full_name())),
                                  "a well-formed message whose strings are valid UTF-8"),
                     "MALFORMED_REQUEST");
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
