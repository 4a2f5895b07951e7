// Deployments that clients load, replace, unload and list: rights, paths, and the calls.
#include "server/deployment_commands.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/v1/admin.grpc.pb.h"
#include "tests/server/server_harness.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kLate[] = R"(
  models { name: "m" fake { seed: 7 max_positions: 16384 } kv_pages: 64 }
  deployments { name: "late" large: "m" })";

class DeploymentCalls : public ::testing::Test {
 protected:
  DeploymentCalls() {
    folder_.write("models/model/config.json", "{}");
    folder_.write("outside/config.json", "{}");
    folder_.write("tokens", "ann ann-0123456789abcdef\nbob bob-0123456789abcdef\n");
  }

  std::string on() const { return "model_folder: \"" + folder_.path() + "/models\" "; }
  static std::unique_ptr<v1::Admin::Stub> stub(const Harness& h) {
    return v1::Admin::NewStub(
        grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  }
  static void identify(grpc::ClientContext* context, const std::string& client) {
    if (client.empty()) return;
    context->AddMetadata("authorization", "Bearer " + client + "-0123456789abcdef");
  }
  static grpc::Status load(const Harness& h, const std::string& text,
                           const std::string& client = "") {
    grpc::ClientContext context;
    identify(&context, client);
    v1::LoadDeploymentRequest request;
    request.set_configuration(text);
    v1::LoadDeploymentResponse response;
    return stub(h)->LoadDeployment(&context, request, &response);
  }
  static grpc::Status replace(const Harness& h, const std::string& text) {
    grpc::ClientContext context;
    v1::ReplaceDeploymentRequest request;
    request.set_configuration(text);
    v1::ReplaceDeploymentResponse response;
    return stub(h)->ReplaceDeployment(&context, request, &response);
  }
  static grpc::Status unload(const Harness& h, const std::string& name,
                             std::optional<double> drain = {}) {
    grpc::ClientContext context;
    v1::UnloadDeploymentRequest request;
    request.set_model(name);
    if (drain) request.set_drain_seconds(*drain);
    v1::UnloadDeploymentResponse response;
    return stub(h)->UnloadDeployment(&context, request, &response);
  }
  static std::vector<std::string> list(const Harness& h) {
    grpc::ClientContext context;
    v1::ListDeploymentsResponse response;
    EXPECT_TRUE(stub(h)->ListDeployments(&context, {}, &response).ok());
    std::vector<std::string> names;
    for (const v1::ServedDeployment& d : response.deployments()) {
      names.push_back(d.model().name() + (d.draining() ? " draining" : ""));
    }
    return names;
  }
  static std::vector<std::string> over_http(const Harness& h) {
    httplib::Client http("http://" + h.server->openai_address());
    const auto answer = http.Get("/v1/models");
    std::vector<std::string> names;
    if (!answer) return names;
    const json listed = json::parse(answer->body);
    for (const json& m : listed["data"]) names.push_back(m["id"]);
    return names;
  }

  const test::TempDir folder_;
};

TEST_F(DeploymentCalls, ComeAndGo) {
  Harness h(on() + "openai: \"127.0.0.1:0\" ");
  EXPECT_EQ(h.client->health("tandem.v1.Generation/late").status().code(),
            absl::StatusCode::kNotFound);
  const grpc::Status loaded = load(h, kLate);
  ASSERT_TRUE(loaded.ok()) << loaded.error_message();
  EXPECT_THAT(list(h), ElementsAre("fake", "slow", "pair", "late"));
  EXPECT_THAT(over_http(h), ElementsAre("fake", "slow", "pair", "late"));
  EXPECT_EQ(h.client->health("tandem.v1.Generation/late").value(), "SERVING");
  const Stream first = stream(*h.client, ask("late", "hello", 10));
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_NE(first.ids, stream(*h.client, ask("fake", "hello", 10)).ids);
  EXPECT_EQ(load(h, kLate).error_code(), grpc::StatusCode::ALREADY_EXISTS);

  const grpc::Status replaced = replace(h, R"(
      models { name: "n" fake { seed: 8 max_positions: 16384 } kv_pages: 64 }
      deployments { name: "late" large: "n" })");
  ASSERT_TRUE(replaced.ok()) << replaced.error_message();
  EXPECT_NE(stream(*h.client, ask("late", "hello", 10)).ids, first.ids);
  EXPECT_TRUE(eventually([&] { return list(h).size() == 4; }));

  ASSERT_TRUE(unload(h, "late").ok());
  EXPECT_THAT(list(h), ElementsAre("fake", "slow", "pair"));
  EXPECT_THAT(over_http(h), ElementsAre("fake", "slow", "pair"));
  EXPECT_EQ(stream(*h.client, ask("late", "hello", 10)).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(h.client->health("tandem.v1.Generation/late").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(unload(h, "late").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(DeploymentCalls, TheLimitEndsStreamsThatAreLeft) {
  Harness h(on());
  Stream open;
  bool asked = false;
  grpc::Status unloaded;
  open.status = h.client->generate(ask("slow", "hello", 1000), [&](const v1::GenerateResponse& r) {
    open.add(r);
    if (!open.ids.empty() && !std::exchange(asked, true)) unloaded = unload(h, "slow", 0);
    return true;
  });
  EXPECT_TRUE(asked && unloaded.ok()) << unloaded.error_message();
  EXPECT_EQ(open.status.code(), absl::StatusCode::kUnavailable) << open.status;
  EXPECT_EQ(unload(h, "pair", -1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(unload(h, "pair", 1e6).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DeploymentCalls, WithoutAnyTheServerIsAliveAndNotReady) {
  Harness h(on());
  for (const char* name : {"fake", "slow", "pair"}) ASSERT_TRUE(unload(h, name).ok());
  httplib::Client http("http://" + h.server->http_address());
  EXPECT_EQ(http.Get("/healthz")->status, 200);
  EXPECT_EQ(http.Get("/readyz")->status, 503);
  EXPECT_EQ(http.Get("/metrics")->status, 200);
  EXPECT_EQ(http.Get("/metrics/gateway")->status, 200);
  ASSERT_TRUE(load(h, kLate).ok());
  EXPECT_EQ(http.Get("/readyz")->status, 200);
  EXPECT_THAT(http.Get("/metrics")->body, HasSubstr("model=\"late\""));
}

TEST_F(DeploymentCalls, AWrongOneIsRefusedByName) {
  Harness h(on());
  const auto refused = [&](const std::string& text) {
    const grpc::Status status = load(h, text);
    EXPECT_THAT(list(h), ElementsAre("fake", "slow", "pair"));
    return std::to_string(status.error_code()) + " " + status.error_message();
  };
  const std::string late = "deployments { name: \"late\" large: \"m\" }";
  EXPECT_THAT(refused("models {"), HasSubstr("3 "));
  EXPECT_THAT(refused("models { name: \"m\" fake {} }"), HasSubstr("deployments: 0; allowed: 1"));
  EXPECT_THAT(refused(late), HasSubstr("large: \"m\"; allowed: \"fake\", \"little\", \"slow\""));
  EXPECT_THAT(refused(late + " text_threads: 2"),
              HasSubstr("text_threads: set; allowed: models, deployments"));
  EXPECT_THAT(refused(late + " models { name: \"m\" fake {} device: \"cpu:9\" }"),
              HasSubstr("models[0].device: \"cpu:9\""));
  EXPECT_THAT(refused(late + " models { name: \"m\" fake { trace_file: \"/tmp/x\" } }"),
              HasSubstr("models[0].fake.trace_file"));
  EXPECT_THAT(refused(late + " models { name: \"m\" fake {} kv_pages: 99999999 }"),
              HasSubstr("8 device cpu:0"));
  EXPECT_THAT(refused("deployments { name: \"late\" large: \"fake\" "
                      "bild { early_exit_layer: 4 } }"),
              HasSubstr("early_exit_layer"));
}

TEST_F(DeploymentCalls, PathsAreBelowTheFolder) {
  Harness h(on());
  const auto code = [&](const std::string& path) {
    return load(h, "models { name: \"m\" path: \"" + path +
                       "\" } deployments { name: \"late\" large: \"m\" }")
        .error_code();
  };
  for (const std::string path : {"../outside", "/etc", ".", "../models"}) {
    EXPECT_EQ(code(path), grpc::StatusCode::PERMISSION_DENIED) << path;
  }
  EXPECT_EQ(code(folder_.path() + "/outside"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(code("none"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code("hf://org/repo"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(""), grpc::StatusCode::INVALID_ARGUMENT);
  fs::create_symlink(folder_.path() + "/outside/config.json",
                     folder_.path() + "/models/model/tokenizer.json");
  EXPECT_EQ(code("model"), grpc::StatusCode::PERMISSION_DENIED) << "a file of it is a link";
}

TEST_F(DeploymentCalls, OnlyAdministratorsMayWhereClientsHaveNames) {
  Harness h(on() + "bearer_token_file: \"" + folder_.path() + "/tokens\" administrators: \"ann\" ");
  EXPECT_EQ(load(h, kLate).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(load(h, kLate, "bob").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(load(h, kLate, "ann").ok());
}

TEST_F(DeploymentCalls, AreOffByDefault) {
  Harness h;
  const grpc::Status off = load(h, kLate);
  EXPECT_EQ(off.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(off.error_message(), HasSubstr("server.model_folder: unset"));
  EXPECT_EQ(unload(h, "fake").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace tandem
