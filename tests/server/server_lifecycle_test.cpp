// Coming up and going down: readiness, health, drain, ports.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
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
  for (const char* model : {"fake", "slow", "pair"}) {
    EXPECT_EQ(h.client->health(std::string("tandem.v1.Generation/") + model).value(), "SERVING");
  }
  const absl::Status unknown = h.client->health("nope").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), testing::Not(HasSubstr("pair")));
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
  explicit Watch(const std::string& address, const std::string& service = "")
      : stub_(grpc::health::v1::Health::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    thread_ = std::thread([this, request] {
      const auto reader = stub_->Watch(&context_, request);
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

// Models on two devices, which are lost one after the other.
TEST(ServerLifecycle, ALostDeviceTakesItsModelsOutOfService) {
  using grpc::health::v1::HealthCheckResponse;
  std::atomic<bool> lost[2] = {false, false};
  Harness h("", true, R"(devices { name: "cpu:0" } devices { name: "cpu:1" }
                   models { name: "other" fake {} device: "cpu:1" }
                   deployments { name: "other" large: "other" }
                   deployments { name: "across" large: "fake" small: "other" })",
            [&](EngineConfig* config) {
              for (ModelConfig& m : config->models) {
                m.fake->lost = [&lost](const std::string& device) {
                  return lost[device == "cpu:1"].load();
                };
              }
            });
  const auto health = [&](const std::string& model) {
    return h.client->health(model.empty() ? "" : "tandem.v1.Generation/" + model).value();
  };
  const auto get = [&](const std::string& path) {
    return httplib::Client("http://" + h.server->http_address()).Get(path);
  };
  Watch all(h.server->grpc_address()),
      of_other(h.server->grpc_address(), "tandem.v1.Generation/other");
  EXPECT_TRUE(eventually([&] { return all.states().size() + of_other.states().size() == 2; }));
  for (const char* model : {"", "fake", "other", "across"}) EXPECT_EQ(health(model), "SERVING");
  EXPECT_THAT(get("/metrics")->body, HasSubstr("tandem_device_lost{device=\"cpu:1\"} 0\n"));

  lost[1] = true;
  EXPECT_EQ(h.client->complete(ask("other", "x", 5)).status().code(),
            absl::StatusCode::kUnavailable);
  // Health reports the loss before clients see it.
  EXPECT_EQ(health("other"), "NOT_SERVING");
  for (const char* model : {"", "fake", "across"}) EXPECT_EQ(health(model), "SERVING") << model;
  EXPECT_TRUE(eventually([&] { return of_other.states().size() == 2; }));
  EXPECT_EQ(get("/readyz")->status, 200);
  EXPECT_THAT(get("/metrics")->body, HasSubstr("tandem_device_lost{device=\"cpu:1\"} 1\n"));
  EXPECT_TRUE(h.client->complete(ask("across", "x", 5)).ok()) << "its large model is still there";
  v1::GenerateRequest with_small = ask("across", "x", 5);
  with_small.mutable_speculative();
  EXPECT_EQ(h.client->complete(with_small).status().code(), absl::StatusCode::kUnavailable);
  const auto across = h.client->model("across");
  ASSERT_TRUE(across.ok()) << across.status();
  EXPECT_FALSE(across->components(0).device_lost());
  EXPECT_TRUE(across->components(1).device_lost());

  lost[0] = true;
  EXPECT_EQ(h.client->complete(ask("fake", "x", 5)).status().code(),
            absl::StatusCode::kUnavailable);
  for (const char* model : {"", "fake", "other", "across"}) EXPECT_EQ(health(model), "NOT_SERVING");
  EXPECT_EQ(h.client->health("tandem.v1.Models").value(), "SERVING");
  EXPECT_EQ(get("/readyz")->status, 503);
  EXPECT_EQ(get("/healthz")->status, 503);
  EXPECT_TRUE(eventually([&] { return all.states().size() == 2; }));
  h.server->drain();
  EXPECT_EQ(all.end().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(of_other.end().error_code(), grpc::StatusCode::UNAVAILABLE);
  const std::vector<int> served_and_not = {HealthCheckResponse::SERVING,
                                           HealthCheckResponse::NOT_SERVING};
  EXPECT_EQ(all.states(), served_and_not);
  EXPECT_EQ(of_other.states(), served_and_not);
}

// A device that never answers is not lost, and nothing says so but the time that it takes. The fake
// one answers on the loop, which it holds up.
TEST(ServerLifecycle, ADeviceThatHangsIsReported) {
  std::atomic<bool> hangs{false};
  std::promise<void> go;
  const std::shared_future<void> goes_on = go.get_future().share();
  Harness h("stuck_seconds: 1", true, "", [&](EngineConfig* config) {
    for (ModelConfig& m : config->models) {
      m.fake->lost = [&](const std::string&) {
        if (hangs.load()) goes_on.wait();
        return false;
      };
    }
  });
  const auto get = [&](const std::string& path) {
    return httplib::Client("http://" + h.server->http_address()).Get(path);
  };
  EXPECT_EQ(get("/healthz")->status, 200);
  hangs.store(true);
  absl::Status status;
  std::thread client([&] { status = h.client->complete(ask("fake", "x", 5)).status(); });
  EXPECT_TRUE(eventually([&] { return get("/healthz")->status == 503; }));
  EXPECT_THAT(get("/healthz")->body, HasSubstr("the loop has been in one step for "));
  EXPECT_EQ(get("/readyz")->status, 503);
  EXPECT_EQ(h.client->health().value(), "NOT_SERVING");
  EXPECT_THAT(get("/metrics")->body, HasSubstr("tandem_stuck 1\n"));
  hangs.store(false);
  go.set_value();
  client.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(eventually([&] { return get("/healthz")->status == 200; }));
  EXPECT_EQ(h.client->health().value(), "SERVING");
}

TEST(ServerLifecycle, DrainFinishesStreamsAndRefusesNewOnes) {
  using grpc::health::v1::HealthCheckResponse;
  Harness h("grace_seconds: 60");
  httplib::Client http("http://" + h.server->http_address());
  Watch watch(h.server->grpc_address());
  EXPECT_TRUE(eventually([&] { return watch.states().size() == 1; }));

  std::promise<void> running;
  Stream s;
  std::thread client([&] {
    bool started = false;
    v1::GenerateRequest request = ask("slow", "drain", 200);
    request.mutable_autoregressive();  // a token at a time, so that it takes a second
    s.status = h.client->generate(request, [&](const v1::GenerateResponse& e) {
      s.add(e);
      if (!started && e.has_chunk()) running.set_value();
      started = started || e.has_chunk();
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
    bool started = false;
    status = h.client->generate(ask("slow", "x", 3000), [&](const v1::GenerateResponse& e) {
      if (!started && e.has_chunk()) running.set_value();
      started = started || e.has_chunk();
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
