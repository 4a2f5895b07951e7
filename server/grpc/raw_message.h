// Converts messages to and from gRPC's byte buffers.
//
// The services read raw buffers, because gRPC replies to a request that protobuf cannot parse
// (malformed bytes, a string that is not UTF-8) with UNIMPLEMENTED and no message.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {

// INVALID_ARGUMENT if `buffer` does not hold a Message.
template <class Message>
absl::Status parse_message(const grpc::ByteBuffer& buffer, Message* out) {
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
