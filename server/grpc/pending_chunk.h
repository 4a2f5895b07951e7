// A chunk that waits to be sent: its texts, and its tokens and calls in wire format. A waiting
// stream thus holds no protobuf messages, and chunks are merged by appending.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <string>

#include "server/grpc/response_to_proto.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

class PendingChunk {
 public:
  PendingChunk() = default;
  // Without `with_tokens` the tokens are only counted. `token_bytes`: see token_to_proto().
  PendingChunk(Chunk chunk, bool with_tokens, const TokenBytes& token_bytes);

  // REQUIRES: `later` is of the same choice.
  void append(const PendingChunk& later);

  int index() const { return index_; }
  size_t tokens() const { return count_; }
  bool empty() const { return bytes() == 0; }
  size_t bytes() const {  // approximate wire size
    return text_.size() + tokens_.size() + reasoning_.size() + calls_.size();
  }

  // A v1::GenerateResponse with a v1::Chunk.
  grpc::ByteBuffer to_buffer() const;

 private:
  int index_ = 0;
  size_t count_ = 0;
  std::string text_;
  std::string tokens_;  // fields `tokens` of a v1::Chunk
  std::string reasoning_;
  std::string calls_;  // fields `tool_calls`
};

}  // namespace tandem
