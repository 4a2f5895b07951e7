// Stands between gRPC and the services: counts and refuses calls on the thread that reads their
// headers, before gRPC reads on (UnheardCalls). gRPC asks it where it would ask for a call's
// credentials; those are looked at later (auth.h).
//
// Calls of methods that nobody serves are refused here too, so that every other one comes to a
// service, which says so.
#pragma once

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "server/edge/unheard_calls.h"

namespace tandem {

class CallGate {
 public:
  // Outlives the server whose credentials it guards.
  CallGate(UnheardCalls::Bounds bounds, const Clock* clock) : calls_(bounds, clock) {}
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  // "/package.Service/Method". Before the server starts.
  void serve(const std::string& path) { paths_.insert(path); }
  // Has gRPC ask this for all calls of connections with these credentials.
  void guard(grpc_server_credentials* credentials);

  // A service has the call. Thread-safe.
  void heard(grpc::ServerContextBase* context);

  const UnheardCalls& calls() const { return calls_; }

 private:
  static void ask(void* self, grpc_auth_context* connection, const grpc_metadata* headers,
                  size_t count, grpc_process_auth_metadata_done_cb answer, void* call);

  UnheardCalls calls_;
  absl::flat_hash_set<std::string> paths_;
};

// Plaintext, guarded by `gate`. For one port of one server, which `gate` outlives.
std::shared_ptr<grpc::ServerCredentials> plain_credentials(CallGate* gate);

}  // namespace tandem
