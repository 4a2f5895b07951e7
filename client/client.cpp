#include "client/client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/mutex.h"
#include "engine/base/read_file.h"
#include "engine/base/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tandem/v1/admin.grpc.pb.h"
#include "tandem/v1/generation.grpc.pb.h"
#include "tandem/v1/models.grpc.pb.h"

namespace tandem {
namespace {

// Responses may be long; their length is bounded by the request.
constexpr int kMaxReceiveBytes = 256 << 20;

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials(
    const ClientOptions& options) {
  if (options.ca_file.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  TANDEM_ASSIGN_OR_RETURN(ssl.pem_root_certs, read_file(options.ca_file));
  if (!options.certificate_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(ssl.pem_cert_chain, read_file(options.certificate_file));
    TANDEM_ASSIGN_OR_RETURN(ssl.pem_private_key, read_file(options.key_file));
  }
  return grpc::SslCredentials(ssl);
}

}  // namespace

struct Client::Impl {
  ClientOptions options;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Generation::Stub> generation;
  std::unique_ptr<v1::Models::Stub> models;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;

  Mutex mutex;
  std::set<grpc::ClientContext*> streams ABSL_GUARDED_BY(mutex);

  // Registers a stream for cancel().
  class Cancellable {
   public:
    Cancellable(Impl* impl, grpc::ClientContext* context) : impl_(impl), context_(context) {
      const MutexLock lock(&impl_->mutex);
      impl_->streams.insert(context_);
    }
    ~Cancellable() {
      const MutexLock lock(&impl_->mutex);
      impl_->streams.erase(context_);
    }
    Cancellable(const Cancellable&) = delete;
    Cancellable& operator=(const Cancellable&) = delete;

   private:
    Impl* const impl_;
    grpc::ClientContext* const context_;
  };

  void prepare(grpc::ClientContext* context) const {
    if (!options.token.empty()) {
      context->AddMetadata("authorization", absl::StrCat("Bearer ", options.token));
    }
    if (!options.traceparent.empty()) context->AddMetadata("traceparent", options.traceparent);
    if (options.timeout.has_value()) {
      context->set_deadline(
          std::chrono::system_clock::now() +
          std::chrono::duration_cast<std::chrono::microseconds>(*options.timeout));
    }
  }

  absl::Status status_of(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    // gRPC's message does not contain the requested address.
    if (code == absl::StatusCode::kUnavailable &&
        status.error_message().find("failed to connect") != std::string::npos) {
      return absl::Status(
          code, absl::StrCat("cannot connect to ", options.server, ": ", status.error_message()));
    }
    return absl::Status(code, status.error_message());
  }

  template <class Stub, class Request, class Response>
  absl::StatusOr<Response> unary(Stub* stub,
                                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                                 const Request& request) const {
    grpc::ClientContext context;
    prepare(&context);
    Response response;
    const grpc::Status status = (stub->*method)(&context, request, &response);
    if (!status.ok()) return status_of(status);
    return response;
  }
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
  auto impl = std::make_unique<Impl>();
  TANDEM_ASSIGN_OR_RETURN(const auto creds, credentials(options));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  // The server is addressed directly, not through a web proxy.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  impl->channel = grpc::CreateCustomChannel(options.server, creds, arguments);
  impl->generation = v1::Generation::NewStub(impl->channel);
  impl->models = v1::Models::NewStub(impl->channel);
  impl->admin = v1::Admin::NewStub(impl->channel);
  impl->health = grpc::health::v1::Health::NewStub(impl->channel);
  impl->options = std::move(options);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::Status Client::generate(const v1::GenerateRequest& request,
                              const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  grpc::ClientContext context;
  impl_->prepare(&context);
  const Impl::Cancellable cancellable(impl_.get(), &context);
  const auto reader = impl_->generation->Generate(&context, request);
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
    if (!on_event(event)) {
      context.TryCancel();
      break;
    }
  }
  while (reader->Read(&event)) {  // discards messages after a cancel
  }
  return impl_->status_of(reader->Finish());
}

void Client::cancel() {
  const MutexLock lock(&impl_->mutex);
  for (grpc::ClientContext* context : impl_->streams) context->TryCancel();
}

absl::StatusOr<v1::CompleteResponse> Client::complete(const v1::GenerateRequest& request) {
  return impl_->unary(impl_->generation.get(), &v1::Generation::Stub::Complete, request);
}

absl::StatusOr<v1::ScoreResponse> Client::score(const v1::ScoreRequest& request) {
  return impl_->unary(impl_->generation.get(), &v1::Generation::Stub::Score, request);
}

absl::StatusOr<v1::TokenizeResponse> Client::tokenize(const v1::TokenizeRequest& request) {
  return impl_->unary(impl_->generation.get(), &v1::Generation::Stub::Tokenize, request);
}

absl::StatusOr<v1::DetokenizeResponse> Client::detokenize(const v1::DetokenizeRequest& request) {
  return impl_->unary(impl_->generation.get(), &v1::Generation::Stub::Detokenize, request);
}

absl::StatusOr<v1::ListModelsResponse> Client::models() {
  v1::ListModelsResponse all;
  v1::ListModelsRequest request;
  do {
    TANDEM_ASSIGN_OR_RETURN(
        const v1::ListModelsResponse page,
        impl_->unary(impl_->models.get(), &v1::Models::Stub::ListModels, request));
    all.MergeFrom(page);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

absl::StatusOr<v1::Model> Client::model(const std::string& name) {
  v1::GetModelRequest request;
  request.set_model(name);
  return impl_->unary(impl_->models.get(), &v1::Models::Stub::GetModel, request);
}

absl::Status Client::load_adapter(const v1::LoadAdapterRequest& request) {
  return impl_->unary(impl_->admin.get(), &v1::Admin::Stub::LoadAdapter, request).status();
}

absl::Status Client::unload_adapter(const v1::UnloadAdapterRequest& request) {
  return impl_->unary(impl_->admin.get(), &v1::Admin::Stub::UnloadAdapter, request).status();
}

absl::Status Client::load_deployment(const v1::LoadDeploymentRequest& request) {
  return impl_->unary(impl_->admin.get(), &v1::Admin::Stub::LoadDeployment, request).status();
}

absl::Status Client::replace_deployment(const v1::ReplaceDeploymentRequest& request) {
  return impl_->unary(impl_->admin.get(), &v1::Admin::Stub::ReplaceDeployment, request).status();
}

absl::Status Client::unload_deployment(const v1::UnloadDeploymentRequest& request) {
  return impl_->unary(impl_->admin.get(), &v1::Admin::Stub::UnloadDeployment, request).status();
}

absl::StatusOr<v1::ListDeploymentsResponse> Client::deployments() {
  return impl_->unary(impl_->admin.get(), &v1::Admin::Stub::ListDeployments,
                      v1::ListDeploymentsRequest());
}

absl::StatusOr<std::string> Client::health(const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  TANDEM_ASSIGN_OR_RETURN(
      const auto response,
      impl_->unary(impl_->health.get(), &grpc::health::v1::Health::Stub::Check, request));
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
}

const char* status_name(absl::StatusCode code) {
  // Abseil's names are gRPC's.
  static const auto* const kNames = [] {
    auto* all = new std::array<std::string, 17>();
    for (size_t i = 0; i < all->size(); ++i) {
      (*all)[i] = absl::StatusCodeToString(static_cast<absl::StatusCode>(i));
    }
    return all;
  }();
  const auto index = static_cast<size_t>(code);
  return index < kNames->size() ? (*kNames)[index].c_str() : "UNKNOWN";
}

}  // namespace tandem
