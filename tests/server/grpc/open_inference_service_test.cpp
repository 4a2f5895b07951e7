// Health and metadata of the Open Inference Protocol, with its generated client.
#include "server/grpc/open_inference_service.h"

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include "engine/base/version.h"
#include "inference/open_inference.grpc.pb.h"
#include "tests/server/server_harness.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class Caller {
 public:
  explicit Caller(const Harness& h)
      : stub_(inference::GRPCInferenceService::NewStub(
            grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()))) {}

  bool live() {
    inference::ServerLiveResponse answer;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ServerLive(&context, {}, &answer).ok());
    return answer.live();
  }
  bool ready() {
    inference::ServerReadyResponse answer;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ServerReady(&context, {}, &answer).ok());
    return answer.ready();
  }
  grpc::Status model_ready(const std::string& name, bool* ready, const std::string& version = "") {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelReadyResponse answer;
    grpc::ClientContext context;
    grpc::Status status = stub_->ModelReady(&context, request, &answer);
    *ready = answer.ready();
    return status;
  }
  grpc::Status server(inference::ServerMetadataResponse* answer) {
    grpc::ClientContext context;
    return stub_->ServerMetadata(&context, {}, answer);
  }
  grpc::Status model(const std::string& name, inference::ModelMetadataResponse* answer,
                     const std::string& version = "") {
    inference::ModelMetadataRequest request;
    request.set_name(name);
    request.set_version(version);
    grpc::ClientContext context;
    return stub_->ModelMetadata(&context, request, answer);
  }

 private:
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
};

TEST(OpenInference, HealthFollowsTheServer) {
  Harness h("", /*attach=*/false);
  Caller caller(h);
  bool ready = true;
  EXPECT_TRUE(caller.live());
  EXPECT_FALSE(caller.ready());
  EXPECT_TRUE(caller.model_ready("fake", &ready).ok());
  EXPECT_FALSE(ready) << "models are loading";
  h.server->attach(h.engine.get());
  EXPECT_TRUE(caller.ready());
  for (const char* model : {"fake", "slow", "pair"}) {
    EXPECT_TRUE(caller.model_ready(model, &ready).ok());
    EXPECT_TRUE(ready) << model;
  }
}

TEST(OpenInference, UnknownModelsAndVersionsAreRefused) {
  Harness h;
  Caller caller(h);
  bool ready = false;
  inference::ModelMetadataResponse answer;
  const grpc::Status unknown = caller.model_ready("nope", &ready);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.error_message(), ::testing::Not(HasSubstr("pair")));
  EXPECT_EQ(caller.model("nope", &answer).error_code(), grpc::StatusCode::NOT_FOUND);
  for (const grpc::Status& status :
       {caller.model_ready("fake", &ready, "2"), caller.model("fake", &answer, "2")}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("version: \"2\"; allowed: empty"));
  }
  const grpc::Status large = caller.model_ready(std::string(600, 'x'), &ready);
  EXPECT_EQ(large.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(large.error_message(), HasSubstr("request: 603 bytes; allowed: at most 512"));
}

TEST(OpenInference, Metadata) {
  Harness h;
  Caller caller(h);
  inference::ServerMetadataResponse server;
  ASSERT_TRUE(caller.server(&server).ok());
  EXPECT_EQ(server.name(), "tandem");
  EXPECT_EQ(server.version(), kVersion);
  inference::ModelMetadataResponse model;
  ASSERT_TRUE(caller.model("pair", &model).ok());
  EXPECT_EQ(model.name(), "pair");
  EXPECT_EQ(model.platform(), "tandem");
}

// As for grpc.health.v1 and Models.
TEST(OpenInference, MetadataNeedsATokenAndHealthNone) {
  const test::TempDir folder;
  const std::string tokens = folder.write("tokens", "ann secret-of-ann-0123456789\n");
  Harness h("bearer_token_file: \"" + tokens + "\"");
  Caller caller(h);
  bool ready = false;
  EXPECT_TRUE(caller.live());
  EXPECT_TRUE(caller.ready());
  EXPECT_TRUE(caller.model_ready("fake", &ready).ok());
  EXPECT_TRUE(ready);
  inference::ServerMetadataResponse server;
  inference::ModelMetadataResponse model;
  EXPECT_EQ(caller.server(&server).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(caller.model("fake", &model).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace tandem
