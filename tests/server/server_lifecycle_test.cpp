// Coming up and going down: readiness, health, drain, ports.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <future>
#include <mutex>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/server_harness.h"

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(ServerLifecycle, HealthPerService) {
  Harness h;
  for (const char* service : {"", "tandem.v1.Generation", "tandem.v1.Models"}) {
    EXPECT_EQ(h.client->health(service).value(), "SERVING") << service;
  }
  EXPECT_EQ(h.client->health("nope").status().code(), absl::StatusCode::kNotFound);
}

TEST(ServerLifecycle, NotReadyBeforeTheModelsAre) {
  Harness h("", /*attach=*/false);
  httplib::Client http("http://" + h.server->http_address());
  EXPECT_EQ(h.client->health().value(), "NOT_SERVING");
  EXPECT_EQ(h.client->complete(ask("fake", "x", 5)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(h.client->models().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(http.Get("/readyz")->status, 503);
  EXPECT_EQ(http.Get("/healthz")->status, 200);
  h.server->attach(h.engine.get());
  EXPECT_EQ(h.client->health().value(), "SERVING");
  EXPECT_EQ(http.Get("/readyz")->status, 200);
  EXPECT_TRUE(h.client->complete(ask("fake", "x", 5)).ok());
}

// A Watch stream on a thread of its own, and the states that it reported.
class Watch {
 public:
  explicit Watch(const std::string& address)
      : stub_(grpc::health::v1::Health::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    thread_ = std::thread([this] {
      const auto reader = stub_->Watch(&context_, {});
      grpc::health::v1::HealthCheckResponse response;
      while (reader->Read(&response)) {
        std::lock_guard lock(mutex_);
        states_.push_back(response.status());
      }
      status_ = reader->Finish();
    });
  }
  std::vector<int> states() {
    std::lock_guard lock(mutex_);
    return states_;
  }
  grpc::Status end() {
    thread_.join();
    return status_;
  }

 private:
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  grpc::ClientContext context_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<int> states_;
  grpc::Status status_;
};

TEST(ServerLifecycle, DrainFinishesStreamsAndRefusesNewOnes) {
  using grpc::health::v1::HealthCheckResponse;
  Harness h("grace_seconds: 60");
  httplib::Client http("http://" + h.server->http_address());
  Watch watch(h.server->grpc_address());
  EXPECT_TRUE(eventually([&] { return watch.states().size() == 1; }));

  std::promise<void> running;
  Stream s;
  std::thread client([&] {
    bool told = false;
    s.status = h.client->generate(ask("slow", "drain", 200), [&](const v1::GenerateResponse& e) {
      s.add(e);
      if (!told && e.has_chunk()) running.set_value();
      told = told || e.has_chunk();
      return true;
    });
  });
  running.get_future().wait();
  std::thread drain([&] { h.server->drain(); });
  EXPECT_TRUE(eventually([&] { return watch.states().size() == 2; }));
  EXPECT_EQ(http.Get("/readyz")->status, 503);
  const auto refused = h.client->complete(ask("fake", "x", 5));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable) << refused.status();
  client.join();
  drain.join();
  EXPECT_TRUE(s.status.ok()) << s.status;
  EXPECT_EQ(s.ids.size(), 200u);
  EXPECT_EQ(s.ids, stream(*Harness().client, ask("slow", "drain", 200)).ids);
  EXPECT_EQ(watch.end().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(watch.states(),
            (std::vector<int>{HealthCheckResponse::SERVING, HealthCheckResponse::NOT_SERVING}));
}

TEST(ServerLifecycle, StreamsStillOpenAtTheEndOfTheGraceGetUnavailable) {
  Harness h("grace_seconds: 0");
  std::promise<void> running;
  absl::Status status;
  std::thread client([&] {
    bool told = false;
    status = h.client->generate(ask("slow", "x", 3000), [&](const v1::GenerateResponse& e) {
      if (!told && e.has_chunk()) running.set_value();
      told = told || e.has_chunk();
      return true;
    });
  });
  running.get_future().wait();
  h.server->drain();
  client.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(ServerLifecycle, ATakenPortIsAnError) {
  Harness h;
  ServerConfig config;
  config.listen = h.server->grpc_address();
  config.http = "off";
  const auto second = Server::start(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(config.listen));
  config.listen = "127.0.0.1:0";
  config.http = h.server->http_address();
  EXPECT_EQ(Server::start(config).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tandem
