// What one client cannot do to the others: broken and oversize input, slow reading, no credentials.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <thread>

#include "tandem/v1/generation.grpc.pb.h"
#include "tests/server/server_harness.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// Sends bytes as they are.
grpc::Status send_raw(const std::string& address, const std::string& method,
                      const std::string& bytes) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::ClientContext context;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, {}, &request, &response,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

TEST(ServerLimits, BrokenMessagesAreNamedAsSuch) {
  Harness h;
  const std::string model =
      "\x0a\x04"
      "fake";                                   // 1: "fake"
  const std::string text = "\x1a\x02\xff\xfe";  // 3: two bytes that are not UTF-8
  for (const char* method : {"Generate", "Complete", "Score", "Tokenize", "Detokenize"}) {
    const std::string path = std::string("/tandem.v1.Generation/") + method;
    const auto status = send_raw(h.server->grpc_address(), path, "\xff\xff\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("request: 3 bytes that are not a tandem.v1."));
  }
  EXPECT_EQ(send_raw(h.server->grpc_address(), "/tandem.v1.Generation/Complete", model + text)
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(send_raw(h.server->grpc_address(), "/tandem.v1.Generation/Nothing", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(ServerLimits, OversizeMessagesAreRefusedAndServingGoesOn) {
  Harness h("max_receive_bytes: 65536");
  EXPECT_EQ(stream(*h.client, ask("fake", std::string(70000, 'x'), 5)).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(ServerLimits, OversizeMetadataIsRefusedAndServingGoesOn) {
  Harness h;
  const auto stub = v1::Generation::NewStub(
      grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("junk", std::string(1 << 20, 'x'));
  v1::CompleteResponse response;
  const grpc::Status status = stub->Complete(&context, ask("fake", "x", 5), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(ServerLimits, AFullQueueSaysWhenToTryAgain) {
  Harness h("", true, "limits { max_running: 1 max_waiting: 1 }");
  std::promise<void> running;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    bool told = false;
    (void)h.client->generate(ask("slow", "x", 3000), [&](const v1::GenerateResponse& event) {
      if (!told && event.has_chunk()) running.set_value();
      told = told || event.has_chunk();
      return true;
    });
  });
  running.get_future().wait();
  threads.emplace_back([&] { (void)h.client->complete(ask("slow", "x", 3000)); });
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 2; }));
  EXPECT_TRUE(eventually([&] { return h.engine->metrics().requests_waiting.value() == 1; }));

  const auto stub = v1::Generation::NewStub(
      grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::CompleteResponse response;
  const grpc::Status status = stub->Complete(&context, ask("slow", "x", 5), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_details(), HasSubstr("type.googleapis.com/google.rpc.RetryInfo"));
  h.engine->shutdown(std::chrono::steady_clock::now());
  for (auto& thread : threads) thread.join();
}

TEST(ServerLimits, ASlowReaderCostsOnlyItself) {
  Harness h("max_unread_bytes: 65536");
  // No look-ahead and no bandwidth probing: the window stays at 64 KiB.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
  const auto channel = grpc::CreateCustomChannel(h.server->grpc_address(),
                                                 grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::Generation::NewStub(channel);
  v1::GenerateRequest request = ask("fake", "x", 12000);
  request.set_top_logprobs(20);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  // Not reading on: the engine is told to stop, and what it has made does not grow further.
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
  int tokens = 0;
  while (reader->Read(&event)) tokens += event.chunk().tokens_size();
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("reads too slowly"));
  EXPECT_FALSE(status.error_details().empty());
  EXPECT_LT(tokens, 12000);
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(ServerLimits, BearerTokens) {
  const test::TempDir dir;
  const std::string file = dir.write("tokens", "ann 0123456789abcdef\n");
  Harness h("bearer_token_file: \"" + file + "\"");
  EXPECT_EQ(stream(*h.client, ask("fake", "x", 5)).status.code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(h.client->models().status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(h.connect({.token = "0123456789abcdeX"})->complete(ask("fake", "x", 5)).status().code(),
            absl::StatusCode::kPermissionDenied);
  const auto ann = h.connect({.token = "0123456789abcdef"});
  EXPECT_TRUE(stream(*ann, ask("fake", "x", 5)).status.ok());
  EXPECT_EQ(*h.client->health(), "SERVING");  // needs none
}

}  // namespace
}  // namespace tandem
