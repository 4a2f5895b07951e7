#include "server/grpc/pending_chunk.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstdint>
#include <utility>

namespace tandem {
namespace {

using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

uint32_t tag(int field) { return Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED); }

// The size of a field with `length` bytes.
size_t field_size(int field, size_t length) {
  return CodedOutputStream::VarintSize32(tag(field)) +
         CodedOutputStream::VarintSize32(static_cast<uint32_t>(length)) + length;
}

// Tag and length; the field's bytes follow.
uint8_t* write_head(int field, size_t length, uint8_t* out) {
  out = CodedOutputStream::WriteTagToArray(tag(field), out);
  return CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(length), out);
}

}  // namespace

PendingChunk::PendingChunk(Chunk chunk, bool with_tokens, const TokenBytes& token_bytes)
    : index_(chunk.index),
      count_(chunk.tokens.size()),
      text_(std::move(chunk.text)),
      reasoning_(std::move(chunk.reasoning)) {
  for (const CallPart& part : chunk.tool_calls) {
    const std::string call = call_to_proto(part).SerializeAsString();
    const size_t before = calls_.size();
    calls_.resize(before + field_size(v1::Chunk::kToolCallsFieldNumber, call.size()));
    auto* out = reinterpret_cast<uint8_t*>(calls_.data()) + before;
    out = write_head(v1::Chunk::kToolCallsFieldNumber, call.size(), out);
    CodedOutputStream::WriteStringToArray(call, out);
  }
  if (!with_tokens) return;
  thread_local v1::Token token;  // reused
  for (const TokenInfo& info : chunk.tokens) {
    token.Clear();
    token_to_proto(info, token_bytes, &token);
    const size_t length = token.ByteSizeLong();
    const size_t before = tokens_.size();
    tokens_.resize(before + field_size(v1::Chunk::kTokensFieldNumber, length));
    auto* out = reinterpret_cast<uint8_t*>(tokens_.data()) + before;
    out = write_head(v1::Chunk::kTokensFieldNumber, length, out);
    token.SerializeWithCachedSizesToArray(out);
  }
}

void PendingChunk::append(const PendingChunk& later) {
  count_ += later.count_;
  text_ += later.text_;
  tokens_ += later.tokens_;
  reasoning_ += later.reasoning_;
  calls_ += later.calls_;
}

grpc::ByteBuffer PendingChunk::to_buffer() const {
  const size_t index_size =
      index_ == 0
          ? 0
          : Wire::Int32Size(index_) + Wire::TagSize(v1::Chunk::kIndexFieldNumber, Wire::TYPE_INT32);
  const size_t text_size =
      text_.empty() ? 0 : field_size(v1::Chunk::kTextFieldNumber, text_.size());
  const size_t reasoning_size =
      reasoning_.empty() ? 0 : field_size(v1::Chunk::kReasoningFieldNumber, reasoning_.size());
  const size_t length = index_size + text_size + tokens_.size() + reasoning_size + calls_.size();
  grpc::Slice slice(field_size(v1::GenerateResponse::kChunkFieldNumber, length));
  auto* out = const_cast<uint8_t*>(slice.begin());  // not yet shared
  out = write_head(v1::GenerateResponse::kChunkFieldNumber, length, out);
  if (index_ != 0) out = Wire::WriteInt32ToArray(v1::Chunk::kIndexFieldNumber, index_, out);
  if (!text_.empty()) {
    out = write_head(v1::Chunk::kTextFieldNumber, text_.size(), out);
    out = CodedOutputStream::WriteStringToArray(text_, out);
  }
  out = CodedOutputStream::WriteStringToArray(tokens_, out);
  if (!reasoning_.empty()) {
    out = write_head(v1::Chunk::kReasoningFieldNumber, reasoning_.size(), out);
    out = CodedOutputStream::WriteStringToArray(reasoning_, out);
  }
  CodedOutputStream::WriteStringToArray(calls_, out);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace tandem
