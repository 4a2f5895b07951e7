// Counts calls and refuses the excess on the thread that reads their headers, before gRPC reads on
// (PendingCalls). gRPC offers no such hook, so this is installed as the processor of a call's
// authentication metadata. Credentials are checked later (auth.h).
//
// Calls of unknown methods, and calls with compressed messages, are refused here too. Every other
// call reaches a service, which reports it with received().
#pragma once

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "server/edge/pending_calls.h"

namespace tandem {

class CallLimiter {
 public:
  // Outlives the server that uses its credentials.
  CallLimiter(PendingCalls::Bounds bounds, const Clock* clock) : calls_(bounds, clock) {}
  CallLimiter(const CallLimiter&) = delete;
  CallLimiter& operator=(const CallLimiter&) = delete;

  // `path`: "/package.Service/Method". REQUIRES: the server has not started.
  void add_method(const std::string& path) { paths_.insert(path); }

  // Makes gRPC call the limiter for every call on connections with these credentials.
  void attach(grpc_server_credentials* credentials);

  // A service has received the call. Thread-safe.
  void received(grpc::ServerContextBase* context);

  const PendingCalls& calls() const { return calls_; }

 private:
  static void process(void* self, grpc_auth_context* connection, const grpc_metadata* headers,
                      size_t count, grpc_process_auth_metadata_done_cb done, void* call);

  PendingCalls calls_;
  absl::flat_hash_set<std::string> paths_;
};

// C++ credentials from the C API's, for one port of one server; takes ownership of `credentials`.
// `limiter` sees every call and outlives the server.
std::shared_ptr<grpc::ServerCredentials> limited_credentials(grpc_server_credentials* credentials,
                                                             CallLimiter* limiter);
// Plaintext.
std::shared_ptr<grpc::ServerCredentials> plain_credentials(CallLimiter* limiter);

}  // namespace tandem
