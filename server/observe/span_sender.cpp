// The gRPC client of span_exporter.h.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "engine/base/mutex.h"
#include "server/observe/span_exporter.h"

namespace tandem {
namespace {

constexpr char kExport[] = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
constexpr int kMaxReconnectMs = 10000;
constexpr auto kHurriedLimit = std::chrono::seconds(1);

std::shared_ptr<grpc::Channel> channel_to(absl::string_view endpoint) {
  const bool tls = absl::ConsumePrefix(&endpoint, "https://");
  absl::ConsumePrefix(&endpoint, "http://");
  absl::ConsumeSuffix(&endpoint, "/");
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                   0);  // the endpoint is an address, not a URL behind a web proxy
  return grpc::CreateCustomChannel(std::string(endpoint),
                                   tls ? grpc::SslCredentials(grpc::SslCredentialsOptions())
                                       : grpc::InsecureChannelCredentials(),
                                   arguments);
}

class GrpcSpanSender final : public SpanSender {
 public:
  explicit GrpcSpanSender(const std::string& endpoint)
      : channel_(channel_to(endpoint)),
        export_(kExport, grpc::internal::RpcMethod::NORMAL_RPC, channel_) {}

  absl::Status send(const SpanBatch& batch, Duration limit) override {
    grpc::ClientContext context;
    {
      const MutexLock lock(&mutex_);
      if (hurried_) {
        limit = std::min<Duration>(limit, kHurriedLimit);
      } else {
        context_ = &context;
      }
    }
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::milliseconds>(limit));
    opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse answer;
    const grpc::Status status = grpc::internal::BlockingUnaryCall<
        SpanBatch, opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse,
        google::protobuf::MessageLite, google::protobuf::MessageLite>(channel_.get(), export_,
                                                                      &context, batch, &answer);
    {
      const MutexLock lock(&mutex_);
      context_ = nullptr;
    }
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  void hurry() override {
    const MutexLock lock(&mutex_);
    hurried_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const grpc::internal::RpcMethod export_;
  Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the waiting call
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<SpanSender> span_sender(const std::string& endpoint) {
  return std::make_unique<GrpcSpanSender>(endpoint);
}

}  // namespace tandem
