// The memory account of a server: every way of a call charges it, and gives everything back.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include "engine/base/memory_account.h"
#include "server/grpc/call_memory.h"
#include "tandem/v1/generation.grpc.pb.h"
#include "tests/server/server_harness.h"

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(ServerMemory, EveryCallIsChargedAndGivesEverythingBack) {
  Harness h;
  const std::shared_ptr<MemoryAccount> account = h.server->memory();
  const auto balanced = [&] { return account->charges() == 0 && account->used() == 0; };
  const std::string text(5000, 'x');
  const auto call = [&](const char* what, int64_t least, const std::function<void()>& run) {
    run();
    EXPECT_TRUE(eventually(balanced)) << what << ": " << account->used();
    EXPECT_GE(account->peak(), least) << what;
  };
  // Text is charged 16 times while it is tokenized.
  call("Generate", kCallBytes + 16 * 5000,
       [&] { EXPECT_TRUE(stream(*h.client, ask("fake", text, 5)).status.ok()); });
  call("Complete", 0, [&] { EXPECT_TRUE(h.client->complete(ask("fake", text, 5)).ok()); });
  call("Score", 0, [&] {
    v1::ScoreRequest request;
    request.set_model("fake");
    request.set_text(text);
    request.set_continuation_text("y");
    request.set_top_logprobs(5);
    request.set_score_prompt(true);
    EXPECT_TRUE(h.client->score(request).ok());
  });
  const auto stub = v1::Generation::NewStub(
      grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  const std::string longer(15000, 'x');
  call("Embed", kCallBytes + 16 * 15000, [&] {
    v1::EmbedRequest request;
    request.set_model("fake");
    request.add_inputs()->set_text(longer);
    request.add_inputs()->set_text("y");
    grpc::ClientContext context;
    v1::EmbedResponse response;
    EXPECT_TRUE(stub->Embed(&context, request, &response).ok());
    EXPECT_EQ(response.usage().prompt_tokens(), 15001);
  });
  call("Rerank", 0, [&] {
    v1::RerankRequest request;
    request.set_model("fake");
    request.set_query(text);
    for (int i = 0; i < 20; ++i) request.add_documents(text);
    grpc::ClientContext context;
    v1::RerankResponse response;
    const grpc::Status status = stub->Rerank(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "`yes` is 3 tokens";
  });
  call("Tokenize", 8 * 5000, [&] {
    v1::TokenizeRequest request;
    request.set_model("fake");
    request.set_text(text);
    request.set_return_token_texts(true);
    EXPECT_TRUE(h.client->tokenize(request).ok());
  });
  call("Detokenize", 0, [&] {
    v1::DetokenizeRequest request;
    request.set_model("fake");
    for (int i = 0; i < 1000; ++i) request.add_token_ids(i % 100);
    EXPECT_TRUE(h.client->detokenize(request).ok());
  });
  call("ListModels", 0, [&] { EXPECT_TRUE(h.client->models().ok()); });
  call("refusals", 0, [&] {
    EXPECT_FALSE(h.client->complete(ask("unknown", text, 5)).ok());
    EXPECT_FALSE(stream(*h.client, ask("unknown", text, 5)).status.ok());
    EXPECT_FALSE(stream(*h.client, ask("fake", std::string(1 << 20, 'x'), 5)).status.ok());
    EXPECT_FALSE(h.client->complete(ask("fake", text, -1)).ok());
  });
  call("cancelled", 0, [&] {
    int events = 0;
    EXPECT_TRUE(absl::IsCancelled(h.client->generate(
        ask("slow", "x", 3000), [&](const v1::GenerateResponse&) { return ++events < 3; })));
  });
  call("several choices", 0, [&] {
    v1::GenerateRequest request = ask("fake", text, 50);
    request.set_n(4);
    EXPECT_TRUE(h.client->complete(request).ok());
  });
}

// What a running request holds stays charged until its end, and a stream's unread text too.
TEST(ServerMemory, RunningRequestsStayCharged) {
  Harness h;
  const std::shared_ptr<MemoryAccount> account = h.server->memory();
  const std::string prompt(1000, 'x');
  int64_t running = 0;
  int events = 0;
  (void)h.client->generate(ask("slow", prompt, 100), [&](const v1::GenerateResponse&) {
    if (++events == 5) running = account->used();
    return events < 5;
  });
  EXPECT_GE(running, kCallBytes + 1000);
  EXPECT_TRUE(eventually([&] { return account->used() == 0; }));
}

TEST(ServerMemory, AFullAccountRefusesCallsWithADelay) {
  Harness h("memory_bytes: 67108864 max_transport_bytes: 16777216");
  const std::shared_ptr<MemoryAccount> account = h.server->memory();
  EXPECT_EQ(account->total(), 48 << 20);
  auto others = account->charge("other", "", account->total() / 2);
  auto more = account->charge("another", "", account->total() / 2 - kCallBytes - 1000);
  ASSERT_TRUE(others.ok() && more.ok());

  const auto stub = v1::Generation::NewStub(
      grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  const auto complete = [&](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::CompleteResponse response;
    return stub->Complete(&context, request, &response);
  };
  const grpc::Status refused = complete(ask("fake", std::string(2000, 'x'), 5));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("(server.memory_bytes for calls)"));
  EXPECT_THAT(refused.error_details(), HasSubstr("type.googleapis.com/google.rpc.RetryInfo"));
  EXPECT_THAT(refused.error_details(), HasSubstr("MEMORY_FULL"));
  EXPECT_EQ(stream(*h.client, ask("fake", std::string(2000, 'x'), 5)).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*h.client->health(), "SERVING");  // charges nothing

  more->release();
  EXPECT_TRUE(complete(ask("fake", std::string(2000, 'x'), 5)).ok());
  others->release();
}

// An answer that is being made is charged as it grows, and given up where the account is full.
TEST(ServerMemory, AnAnswerIsGivenUpWhenMemoryIsFull) {
  Harness h("memory_bytes: 67108864 max_transport_bytes: 16777216");
  const std::shared_ptr<MemoryAccount> account = h.server->memory();
  auto others = account->charge("other", "", account->total() / 2);
  auto more = account->charge("another", "", account->total() / 2 - (1 << 20));
  ASSERT_TRUE(others.ok() && more.ok());
  v1::GenerateRequest request = ask("fake", "x", 3000);  // 8 times 1 MB
  request.set_top_logprobs(20);
  const absl::Status status = h.client->complete(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
  more->release();
  EXPECT_TRUE(h.client->complete(request).ok());
  others->release();
}

}  // namespace
}  // namespace tandem
