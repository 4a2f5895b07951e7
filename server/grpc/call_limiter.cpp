#include "server/grpc/call_limiter.h"

#include <grpc/grpc.h>

#include "absl/strings/string_view.h"

namespace tandem {
namespace {

constexpr absl::string_view kIdentity = "identity";

absl::string_view text_of(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// gRPC's C++ API neither runs a metadata processor on plaintext connections nor offers TLS
// credentials with a certificate fetcher. The C API does both.
class LimitedCredentials final : public grpc::ServerCredentials {
 public:
  LimitedCredentials(grpc_server_credentials* credentials, CallLimiter* limiter)
      : credentials_(credentials) {
    limiter->attach(credentials_);
  }
  ~LimitedCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

void CallLimiter::attach(grpc_server_credentials* credentials) {
  const auto destroy = [](void*) {};  // gRPC does not own the limiter
  grpc_server_credentials_set_auth_metadata_processor(credentials, {&process, destroy, this});
}

void CallLimiter::process(void* self, grpc_auth_context* connection, const grpc_metadata* headers,
                          size_t count, grpc_process_auth_metadata_done_cb done, void* call) {
  auto& limiter = *static_cast<CallLimiter*>(self);
  const auto finish = [&](grpc_status_code code, const char* message) {
    done(call, nullptr, 0, nullptr, 0, code, message);
  };
  absl::string_view path, encoding = kIdentity;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view key = text_of(headers[i].key);
    if (key == ":path") path = text_of(headers[i].value);
    if (key == "grpc-encoding") encoding = text_of(headers[i].value);
  }
  if (encoding != kIdentity) {
    finish(GRPC_STATUS_UNIMPLEMENTED,
           "grpc-encoding: compressed messages are refused; allowed: identity");
  } else if (!limiter.paths_.contains(path)) {
    finish(GRPC_STATUS_UNIMPLEMENTED, "unknown method; server reflection lists all methods");
  } else if (!limiter.calls_.admit(connection)) {
    finish(GRPC_STATUS_RESOURCE_EXHAUSTED, "too many calls at once; try again later");
  } else {
    finish(GRPC_STATUS_OK, nullptr);
  }
}

void CallLimiter::received(grpc::ServerContextBase* context) {
  // Null on connections that were not accepted: the monitor's own.
  grpc_auth_context* const connection = grpc_call_auth_context(context->c_call());
  if (connection == nullptr) return;
  calls_.received(connection);
  grpc_auth_context_release(connection);
}

std::shared_ptr<grpc::ServerCredentials> limited_credentials(grpc_server_credentials* credentials,
                                                             CallLimiter* limiter) {
  return std::make_shared<LimitedCredentials>(credentials, limiter);
}

std::shared_ptr<grpc::ServerCredentials> plain_credentials(CallLimiter* limiter) {
  return limited_credentials(grpc_insecure_server_credentials_create(), limiter);
}

}  // namespace tandem
