// LoRA adapters that clients load: rights, paths, and the calls of both APIs.
#include "server/adapter_commands.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tandem/v1/admin.grpc.pb.h"
#include "tests/server/server_harness.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

// A folder of adapters, and something beside it.
class AdapterPaths : public ::testing::Test {
 protected:
  AdapterPaths() {
    folder_.write("adapters/sql/adapter_config.json", "{}");
    folder_.write("adapters/sql/adapter_model.safetensors", "w");
    folder_.write("adapters/law.gguf", "weights");
    folder_.write("adapters-2/x.gguf", "w");
    folder_.write("secret", "s");
    real_ = fs::canonical(root_).string();
  }

  std::string path(const std::string& asked) const {
    const auto found = adapter_path(root_, asked);
    return found.ok() ? *found : std::string(absl::StatusCodeToString(found.status().code()));
  }

  const test::TempDir folder_;
  const std::string root_ = folder_.path() + "/adapters";
  std::string real_;
};

TEST_F(AdapterPaths, ThoseBelowTheFolder) {
  EXPECT_EQ(path("law.gguf"), real_ + "/law.gguf");
  EXPECT_EQ(path("sql"), real_ + "/sql");
  EXPECT_EQ(path("./sql/../law.gguf"), real_ + "/law.gguf");
  EXPECT_EQ(path(root_ + "/sql"), real_ + "/sql");
  fs::create_symlink("law.gguf", root_ + "/link.gguf");
  EXPECT_EQ(path("link.gguf"), real_ + "/law.gguf");
  EXPECT_EQ(path("none"), "NOT_FOUND");
  EXPECT_EQ(path("none/deeper.gguf"), "NOT_FOUND");
}

TEST_F(AdapterPaths, OthersAreDeniedWhetherTheyExistOrNot) {
  fs::create_symlink(folder_.path() + "/secret", root_ + "/out.gguf");
  fs::create_symlink(folder_.path(), root_ + "/up");
  for (const std::string& asked :
       {std::string("../secret"), std::string("../none"), folder_.path() + "/secret",
        std::string("/etc/passwd"), std::string("/none"), std::string("out.gguf"),
        std::string("up/secret"), std::string("up/none"), std::string("."), root_,
        std::string("sql/../.."), root_ + "-2/x.gguf", std::string("../adapters-2/x.gguf")}) {
    EXPECT_EQ(path(asked), "PERMISSION_DENIED") << asked;
  }
  EXPECT_EQ(path(""), "INVALID_ARGUMENT");
  EXPECT_EQ(path(std::string("law.gguf\0x", 10)), "INVALID_ARGUMENT");
  const absl::Status denied = adapter_path(root_, "../secret").status();
  EXPECT_EQ(denied.message(), "path: \"../secret\"; allowed: paths below server.adapter_folder");
}

TEST_F(AdapterPaths, FilesOfAnAdapterMayNotBeElsewhere) {
  fs::remove(root_ + "/sql/adapter_model.safetensors");
  EXPECT_EQ(path("sql"), real_ + "/sql") << "the engine says what is missing";
  fs::create_symlink(folder_.path() + "/secret", root_ + "/sql/adapter_model.safetensors");
  EXPECT_EQ(path("sql"), "PERMISSION_DENIED");
}

TEST(Administrators, AreNamedWhereClientsHaveNames) {
  ServerConfig config;
  EXPECT_EQ(check_administrator(config, "ann").code(), absl::StatusCode::kFailedPrecondition);
  config.adapter_folder = "/adapters";
  EXPECT_TRUE(check_administrator(config, "127.0.0.1").ok()) << "clients have no names";
  config.administrators = {"ann"};
  config.bearer_token_file = "/tokens";
  EXPECT_TRUE(check_administrator(config, "ann").ok());
  const absl::Status denied = check_administrator(config, "bob");
  EXPECT_EQ(denied.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(denied.message(), "client: \"bob\"; allowed: those in server.administrators");
  config.bearer_token_file = "";
  EXPECT_TRUE(check_administrator(config, "bob").ok());
  config.tls_files.client_ca = "/ca";
  EXPECT_FALSE(check_administrator(config, "bob").ok());
}

// A server whose adapters are the files a and b of 100 bytes, and tokens of ann (who may) and bob.
class AdapterCalls : public ::testing::Test {
 protected:
  AdapterCalls() {
    for (const char* name : {"a", "b"}) {
      folder_.write(std::string("adapters/") + name, std::string(100, 'w'));
    }
    folder_.write("outside", "w");
    folder_.write("tokens", "ann ann-0123456789abcdef\nbob bob-0123456789abcdef\n");
  }

  std::string on() const { return "adapter_folder: \"" + folder_.path() + "/adapters\" "; }
  std::string named() const {
    return on() + "bearer_token_file: \"" + folder_.path() +
           "/tokens\" administrators: \"ann\" trusted_gateways: \"bob\" ";
  }
  static constexpr char kOpenAi[] = "openai: \"127.0.0.1:0\" ";

  // The answer's status and text, or its error.
  static std::pair<int, std::string> post(const Harness& h, const std::string& path,
                                          const json& body, const std::string& client = "") {
    httplib::Client http("http://" + h.server->openai_address());
    httplib::Headers headers;
    if (!client.empty()) {
      headers.emplace("Authorization", "Bearer " + client + "-0123456789abcdef");
      headers.emplace("x-gateway-inference-fairness-id", "ann");
    }
    const auto result = http.Post(path, headers, body.dump(), "application/json");
    if (!result) return {0, httplib::to_string(result.error())};
    if (result->status == 200) return {200, result->body};
    return {result->status, json::parse(result->body)["error"]["message"].get<std::string>()};
  }
  static grpc::Status load(const Harness& h, const std::string& adapter, const std::string& path,
                           const std::string& client = "", bool replace = false) {
    const auto stub = v1::Admin::NewStub(
        grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    if (!client.empty()) {
      context.AddMetadata("authorization", "Bearer " + client + "-0123456789abcdef");
      context.AddMetadata("x-gateway-inference-fairness-id", "ann");
    }
    v1::LoadAdapterRequest request;
    request.set_model("fake");
    request.set_adapter(adapter);
    request.set_path(path);
    request.set_replace(replace);
    v1::LoadAdapterResponse response;
    return stub->LoadAdapter(&context, request, &response);
  }
  static grpc::Status unload(const Harness& h, const std::string& adapter) {
    const auto stub = v1::Admin::NewStub(
        grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::UnloadAdapterRequest request;
    request.set_adapter(adapter);
    v1::UnloadAdapterResponse response;
    return stub->UnloadAdapter(&context, request, &response);
  }

  const test::TempDir folder_;
};

TEST_F(AdapterCalls, OverGrpc) {
  Harness h(on());
  ASSERT_TRUE(load(h, "x", "a").ok());
  const Stream adapted = stream(*h.client, ask("x", "hello", 10));
  ASSERT_TRUE(adapted.status.ok()) << adapted.status;
  EXPECT_NE(adapted.ids, stream(*h.client, ask("fake", "hello", 10)).ids);
  EXPECT_EQ(load(h, "x", "b").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(load(h, "x", "b", "", true).ok());
  EXPECT_NE(stream(*h.client, ask("x", "hello", 10)).ids, adapted.ids);
  const grpc::Status outside = load(h, "y", "../outside");
  EXPECT_EQ(outside.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(outside.error_message(), HasSubstr("paths below server.adapter_folder"));
  EXPECT_EQ(load(h, "y", "none").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(load(h, "y:z", "a").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(unload(h, "x").ok());
  EXPECT_EQ(stream(*h.client, ask("x", "hello", 10)).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unload(h, "x").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdapterCalls, OverHttpInVllmsForm) {
  Harness h(on() + kOpenAi);
  const json good = {{"lora_name", "x"}, {"lora_path", "a"}, {"base_model_name", "fake"}};
  using Answer = std::pair<int, std::string>;
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", good),
            Answer(200, "Success: LoRA adapter 'x' added successfully."));
  EXPECT_TRUE(stream(*h.client, ask("x", "hello", 4)).status.ok());
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", good),
            Answer(400,
                   "lora_name: \"x\", which is loaded; allowed: another name, or replace "
                   "(load_inplace)"));
  json again = good;
  again["load_inplace"] = true;
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", again).first, 200);
  json no_model = good;
  no_model.erase("base_model_name");
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", no_model),
            Answer(400, "base_model_name: unset; allowed: \"fake\", \"slow\", \"pair\""));
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", {{"lora_name", "y"}}),
            Answer(400, "lora_path: none; allowed: a text"));
  const json outside = {{"lora_name", "y"}, {"lora_path", "/etc"}, {"base_model_name", "fake"}};
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", outside),
            Answer(403, "lora_path: \"/etc\"; allowed: paths below server.adapter_folder"));
  EXPECT_EQ(post(h, "/v1/unload_lora_adapter", {{"lora_name", "x"}, {"lora_int_id", 7}}),
            Answer(200, "Success: LoRA adapter 'x' removed successfully."));
  EXPECT_EQ(post(h, "/v1/unload_lora_adapter", {{"lora_name", "x"}}),
            Answer(404, "lora_name: \"x\"; known: none"));
}

// A gateway cannot lend an administrator's name to its clients.
TEST_F(AdapterCalls, OnlyAdministratorsMayWhereClientsHaveNames) {
  Harness h(named() + kOpenAi);
  EXPECT_EQ(load(h, "x", "a").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(load(h, "x", "a", "bob").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(load(h, "x", "a", "ann").ok());
  const json more = {{"lora_name", "y"}, {"lora_path", "a"}, {"base_model_name", "fake"}};
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", more).first, 401);
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", more, "bob").first, 403);
  EXPECT_EQ(post(h, "/v1/unload_lora_adapter", {{"lora_name", "x"}}, "bob").first, 403);
  EXPECT_EQ(post(h, "/v1/load_lora_adapter", more, "ann").first, 200);
}

TEST_F(AdapterCalls, AreOffByDefault) {
  Harness h(kOpenAi);
  const grpc::Status off = load(h, "x", "a");
  EXPECT_EQ(off.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(off.error_message(), HasSubstr("server.adapter_folder: unset"));
  EXPECT_EQ(unload(h, "x").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  for (const char* path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    EXPECT_EQ(post(h, path, {{"lora_name", "x"}}).first, 404) << path;
  }
}

}  // namespace
}  // namespace tandem
