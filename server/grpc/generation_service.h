// tandem.v1.Generation: parses requests, submits them to the engine, writes responses. Generate is
// served on threads of its own (call_thread.h), all other methods by gRPC's callbacks.
#pragma once

#include <grpcpp/support/async_stream.h>

#include "server/grpc/call_thread.h"
#include "server/grpc/raw_service.h"
#include "server/server_state.h"

namespace tandem {

class GenerationService final : public RawService {
 public:
  // `state` outlives the service.
  explicit GenerationService(ServerState& state);

  // Starts to accept Generate, with this many calls awaited at once. gRPC queues the excess, and no
  // service sees a call that ends in that queue. REQUIRES: the server has started. The threads
  // outlive it.
  void serve_streams(CallThread& arrivals, CallThread& streams, int64_t calls);

 private:
  ServerState& state_;
  AsyncMethod generate_;
};

}  // namespace tandem
