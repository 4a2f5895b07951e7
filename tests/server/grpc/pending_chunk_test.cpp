// What a waiting chunk becomes is what protobuf makes of the same message.
#include "server/grpc/pending_chunk.h"

#include <gtest/gtest.h>

#include <string>

#include "server/grpc/raw_message.h"

namespace tandem {
namespace {

TokenInfo token(Token id) {
  TokenInfo info;
  info.id = id;
  return info;
}

Chunk chunk_of(int index, std::string text, std::vector<TokenInfo> tokens) {
  Chunk chunk;
  chunk.index = index;
  chunk.text = std::move(text);
  chunk.tokens = std::move(tokens);
  return chunk;
}

v1::GenerateResponse expected(const Chunk& chunk, const TokenBytes& token_bytes) {
  v1::GenerateResponse message;
  v1::Chunk* const out = message.mutable_chunk();
  out->set_index(chunk.index);
  out->set_text(chunk.text);
  for (const TokenInfo& t : chunk.tokens) token_to_proto(t, token_bytes, out->add_tokens());
  out->set_reasoning(chunk.reasoning);
  for (const CallPart& part : chunk.tool_calls) *out->add_tool_calls() = call_to_proto(part);
  return message;
}

std::string bytes_of(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

void expect_same(const Chunk& chunk, const TokenBytes& token_bytes = {}) {
  const std::string bytes = bytes_of(PendingChunk(chunk, true, token_bytes).to_buffer());
  EXPECT_EQ(bytes, expected(chunk, token_bytes).SerializeAsString());
}

TEST(PendingChunk, IsTheMessageThatProtobufMakes) {
  expect_same(chunk_of(0, "a", {token(97)}));
  expect_same(chunk_of(0, "", {token(200)}));  // a character that is not whole yet
  expect_same(chunk_of(0, "held back", {}));
  expect_same(chunk_of(15, "naïve, €", {token(0), token(1 << 20)}));
  expect_same(chunk_of(3, std::string(70'000, 'x'), std::vector<TokenInfo>(300, token(5))));
  TokenInfo rich = token(7);
  rich.provenance = {Source::kSmall, Source::kLarge, true};
  rich.logprob = -0.5F;
  rich.top = {{7, -0.5F}, {300, -1.25F}};
  expect_same(chunk_of(1, "t", {rich, token(8), rich}),
              [](Token id) { return "<" + std::to_string(id) + ">"; });
}

TEST(PendingChunk, HasReasoningAndCalls) {
  Chunk chunk = chunk_of(1, "", {});
  chunk.reasoning = "because";
  expect_same(chunk);
  chunk.text = "a";
  chunk.tokens = {token(97)};
  chunk.tool_calls = {{0, "id", "now", "{", false}, {0, "", "", "}", false}, {1, "", "", "", true}};
  expect_same(chunk);
  PendingChunk joined(chunk, true, {});
  joined.append(PendingChunk(chunk, true, {}));
  Chunk twice = chunk_of(1, "aa", {token(97), token(97)});
  twice.reasoning = "becausebecause";
  twice.tool_calls = chunk.tool_calls;
  twice.tool_calls.insert(twice.tool_calls.end(), chunk.tool_calls.begin(), chunk.tool_calls.end());
  EXPECT_EQ(bytes_of(joined.to_buffer()), expected(twice, {}).SerializeAsString());
  EXPECT_FALSE(joined.empty());
}

TEST(PendingChunk, JoinsByAppending) {
  const Chunk first = chunk_of(2, "over ", {token(1), token(2)});
  const Chunk second = chunk_of(2, "and out", {token(3)});
  PendingChunk joined(first, true, {});
  const size_t bytes = joined.bytes();
  const PendingChunk later(second, true, {});
  joined.append(later);
  EXPECT_EQ(joined.tokens(), 3U);
  EXPECT_EQ(joined.bytes(), bytes + later.bytes());
  const Chunk whole = chunk_of(2, "over and out", {token(1), token(2), token(3)});
  v1::GenerateResponse message;
  ASSERT_TRUE(parse_message(joined.to_buffer(), &message).ok());
  EXPECT_EQ(message.SerializeAsString(), expected(whole, {}).SerializeAsString());
}

}  // namespace
}  // namespace tandem
