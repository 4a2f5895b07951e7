#include "server/call_gate.h"

#include <grpc/grpc.h>

#include "absl/strings/string_view.h"

namespace tandem {
namespace {

absl::string_view text_of(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// gRPC's own plaintext credentials take nobody to ask.
class PlainCredentials final : public grpc::ServerCredentials {
 public:
  explicit PlainCredentials(CallGate* gate)
      : credentials_(grpc_insecure_server_credentials_create()) {
    gate->guard(credentials_);
  }
  ~PlainCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

void CallGate::guard(grpc_server_credentials* credentials) {
  const auto nothing = [](void*) {};  // to destroy
  grpc_server_credentials_set_auth_metadata_processor(credentials, {&ask, nothing, this});
}

void CallGate::ask(void* self, grpc_auth_context* connection, const grpc_metadata* headers,
                   size_t count, grpc_process_auth_metadata_done_cb answer, void* call) {
  auto& gate = *static_cast<CallGate*>(self);
  const auto say = [&](grpc_status_code code, const char* why) {
    answer(call, nullptr, 0, nullptr, 0, code, why);
  };
  absl::string_view path;
  for (size_t i = 0; i < count; ++i) {
    if (text_of(headers[i].key) == ":path") path = text_of(headers[i].value);
  }
  if (!gate.paths_.contains(path)) {
    say(GRPC_STATUS_UNIMPLEMENTED, "no such method; reflection lists what there is");
  } else if (!gate.calls_.made(connection)) {
    say(GRPC_STATUS_RESOURCE_EXHAUSTED, "too many calls at once; try again later");
  } else {
    say(GRPC_STATUS_OK, nullptr);
  }
}

void CallGate::heard(grpc::ServerContextBase* context) {
  // Connections that were not accepted have none: the monitor's.
  grpc_auth_context* const connection = grpc_call_auth_context(context->c_call());
  if (connection == nullptr) return;
  calls_.heard(connection);
  grpc_auth_context_release(connection);
}

std::shared_ptr<grpc::ServerCredentials> plain_credentials(CallGate* gate) {
  return std::make_shared<PlainCredentials>(gate);
}

}  // namespace tandem
