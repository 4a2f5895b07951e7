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
  for (const char* method :
       {"Generate", "Complete", "Score", "Rerank", "Embed", "Tokenize", "Detokenize"}) {
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

TEST(ServerLimits, ACallOfManyInputsIsOneRequest) {
  Harness h("", true, "limits { default_client { max_requests: 1 } }");
  const auto stub = v1::Generation::NewStub(
      grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  const auto code_of = [&](auto call, const auto& request, auto response) {
    grpc::ClientContext context;
    return (stub.get()->*call)(&context, request, &response).error_code();
  };
  v1::EmbedRequest embed;
  embed.set_model("fake");
  v1::RerankRequest rerank;
  rerank.set_model("fake");
  rerank.set_query("x");
  for (int i = 0; i < 40; ++i) {
    embed.add_inputs()->set_text("x");
    rerank.add_documents("x");
  }
  EXPECT_EQ(code_of(&v1::Generation::Stub::Embed, embed, v1::EmbedResponse()),
            grpc::StatusCode::OK);
  EXPECT_EQ(code_of(&v1::Generation::Stub::Rerank, rerank, v1::RerankResponse()),
            grpc::StatusCode::FAILED_PRECONDITION)
      << "fake models are no rerankers";
  const ClientUse& use = h.engine->client_uses().at("");
  EXPECT_EQ(use.requests.value(), 2);
  EXPECT_EQ(use.open.value(), 0);
  EXPECT_GE(use.tokens.value(), 40);

  // An open request of the same client leaves no room for a call.
  const auto open = h.engine->open_call("fake", "127.0.0.1");
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(code_of(&v1::Generation::Stub::Embed, embed, v1::EmbedResponse()),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code_of(&v1::Generation::Stub::Rerank, rerank, v1::RerankResponse()),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  embed.set_model("unknown");
  EXPECT_EQ(code_of(&v1::Generation::Stub::Embed, embed, v1::EmbedResponse()),
            grpc::StatusCode::NOT_FOUND);
}

TEST(ServerLimits, OversizeMessagesAreRefusedAndServingContinues) {
  Harness h("max_receive_bytes: 65536");
  EXPECT_EQ(stream(*h.client, ask("fake", std::string(70000, 'x'), 5)).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(ServerLimits, AnAnswerThatGrowsTooLargeIsEnded) {
  Harness h("max_send_bytes: 20000");
  v1::GenerateRequest request = ask("slow", "x", 3000);
  request.set_top_logprobs(20);
  const absl::Status status = h.client->complete(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("response: more than 20000 bytes; allowed: at most that"));
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
  int64_t generated = 0;
  for (const Series& s : h.engine->metrics().series) generated += s.generated_tokens.value();
  EXPECT_LT(generated, 3000);  // not all of them: the client is gone

  request.set_model("fake");
  EXPECT_TRUE(stream(*h.client, request).status.ok());
  request.clear_top_logprobs();
  request.set_return_tokens(false);
  EXPECT_TRUE(h.client->complete(request).ok());
  v1::TokenizeRequest tokenize;  // an answer that comes as a whole
  tokenize.set_model("fake");
  tokenize.set_text(std::string(4000, 'x'));
  tokenize.set_return_token_texts(true);
  EXPECT_EQ(h.client->tokenize(tokenize).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ServerLimits, OversizeMetadataIsRefusedAndServingContinues) {
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
    bool started = false;
    (void)h.client->generate(ask("slow", "x", 3000), [&](const v1::GenerateResponse& event) {
      if (!started && event.has_chunk()) running.set_value();
      started = started || event.has_chunk();
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

// A client that reads only on request, through a window of 64 KiB.
class SlowReader {
 public:
  SlowReader(const Harness& h, const v1::GenerateRequest& request) {
    grpc::ChannelArguments arguments;  // no look-ahead and no bandwidth probing
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
    stub_ = v1::Generation::NewStub(grpc::CreateCustomChannel(
        h.server->grpc_address(), grpc::InsecureChannelCredentials(), arguments));
    reader_ = stub_->Generate(&context_, request);
  }
  bool read() {
    v1::GenerateResponse event;
    if (!reader_->Read(&event)) return false;
    got.add(event);
    return true;
  }
  grpc::Status read_all() {
    while (read()) {
    }
    return reader_->Finish();
  }

  Stream got;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Generation::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

// 0.3 ms a token.
constexpr char kBrisk[] = R"(
    models { name: "brisk" fake { max_positions: 16384 pass_seconds: 0.0003 } }
    deployments { name: "brisk" large: "brisk" }
)";

v1::GenerateRequest wordy(int tokens) {  // about 300 bytes a token
  v1::GenerateRequest request = ask("brisk", "x", tokens);
  request.set_top_logprobs(20);
  return request;
}

TEST(ServerLimits, ASlowReaderIsPausedAndCostsOnlyItself) {
  constexpr int kTokens = 5000;
  Harness h("", true, kBrisk);
  const Stream expected = stream(*h.client, wordy(kTokens));
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  const auto generated = [&] {
    int64_t sum = 0;
    for (const Series& s : h.engine->metrics().series) sum += s.generated_tokens.value();
    return sum - kTokens;
  };
  SlowReader slow(h, wordy(kTokens));
  ASSERT_TRUE(slow.read());
  // What lies on the way is full, then the server's queue, and then the request is paused.
  ASSERT_TRUE(eventually([&] { return h.engine->metrics().requests_paused.value() == 1; }));
  EXPECT_TRUE(stream(*h.client, ask("brisk", "others continue", 200)).status.ok());
  EXPECT_LT(generated() - 200, kTokens / 2);
  EXPECT_EQ(h.engine->metrics().requests_paused.value(), 1);
  const grpc::Status status = slow.read_all();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(slow.got.ids, expected.ids);
  EXPECT_EQ(slow.got.text, expected.text);
  EXPECT_EQ(slow.got.finished.usage().completion_tokens(), kTokens);
  EXPECT_EQ(h.engine->metrics().requests_paused.value(), 0);
}

// A request that keeps the engine's only text thread until it is released.
class TextHolder final : public Sink {
 public:
  void started(const Started&) override {
    held_.set_value();
    released_.get_future().wait();
  }
  void chunk(Chunk) override {}
  void finished(const Finished&) override {}
  void failed(const absl::Status&) override {}
  void wait() { held_.get_future().wait(); }
  void release() { released_.set_value(); }

 private:
  std::promise<void> held_, released_;
};

TEST(ServerLimits, TokensThatAreNotTextYetCountAsUnread) {
  constexpr int kTokens = 3000, kUnread = 64;
  Harness h("max_unread_tokens: 64", true, kBrisk);
  auto by_tokens = ask("brisk", "x", kTokens);
  by_tokens.mutable_autoregressive();  // a token at a time
  const Stream expected = stream(*h.client, by_tokens);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  const auto generated = [&] {
    int64_t sum = 0;
    for (const Series& s : h.engine->metrics().series) {
      if (s.model == "brisk") sum += s.generated_tokens.value();
    }
    return sum - kTokens;
  };
  std::atomic<int64_t> received{0};
  std::promise<void> running;
  Stream got;
  std::thread reader([&, started = false]() mutable {
    got.status = h.client->generate(by_tokens, [&](const auto& event) {
      got.add(event);
      received.fetch_add(event.chunk().tokens_size());
      if (!started && event.has_chunk()) running.set_value();
      started = started || event.has_chunk();
      return true;
    });
  });
  running.get_future().wait();
  const auto holder = std::make_shared<TextHolder>();
  GenerateRequest request;
  request.model = "fake";
  request.prompt = std::string("y");
  request.stopping.max_new_tokens = 1;
  h.engine->submit(std::move(request), holder);
  holder->wait();
  // The reader takes what is sent, but nothing more becomes text: the request is paused.
  EXPECT_TRUE(eventually([&] { return h.engine->metrics().requests_paused.value() == 1; }));
  // Beyond the bound: the round that was under way, and one that began before the loop was
  // notified.
  EXPECT_TRUE(eventually([&] { return generated() - received.load() <= kUnread + 2; }));
  EXPECT_LT(generated(), kTokens);
  EXPECT_EQ(h.engine->metrics().requests_paused.value(), 1);
  holder->release();
  reader.join();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids, expected.ids);
  EXPECT_EQ(got.text, expected.text);
  EXPECT_EQ(h.engine->metrics().requests_paused.value(), 0);
}

TEST(ServerLimits, AReaderThatNeverReadsEndsInTheEnd) {
  Harness h("max_unread_tokens: 64", true,
            std::string(kBrisk) + "limits { stalled_stream_seconds: 0.2 }");
  SlowReader slow(h, wordy(5000));
  ASSERT_TRUE(slow.read());
  ASSERT_TRUE(eventually([&] { return h.engine->metrics().requests_paused.value() == 1; }));
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
  const grpc::Status status = slow.read_all();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("reads too slowly"));
  EXPECT_FALSE(status.error_details().empty());
  EXPECT_LT(slow.got.ids.size(), 5000U);
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(ServerLimits, AClientThatDisconnectsWhilePausedFreesItsRequest) {
  Harness h("", true, kBrisk);
  {
    SlowReader slow(h, wordy(5000));
    ASSERT_TRUE(slow.read());
    ASSERT_TRUE(eventually([&] { return h.engine->metrics().requests_paused.value() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
  EXPECT_EQ(h.engine->metrics().requests_paused.value(), 0);
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
