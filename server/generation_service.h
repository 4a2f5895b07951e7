// tandem.v1.Generation: reads requests, hands them to the engine, writes answers. Generate is
// served on threads of its own (call_thread.h), the rest by gRPC's callbacks.
#pragma once

#include <grpcpp/support/async_stream.h>

#include "server/call_thread.h"
#include "server/raw_service.h"
#include "server/server_state.h"

namespace tandem {

class GenerationService final : public RawService {
 public:
  // `state` outlives the service.
  explicit GenerationService(ServerState& state);

  // Begins to take calls of Generate, of which it waits for so many at once: gRPC queues what is
  // more, and of a call that ends in that queue nobody hears. The server has been started; the
  // threads outlive it.
  void serve_streams(CallThread& arrivals, CallThread& streams, int64_t calls);

  // Waits for the next call of Generate.
  void await_generate(Arrival* arrival, grpc::ServerContext* context, Stream* stream,
                      const CallThread& streams, const CallThread& arrivals) {
    await(generate_, arrival, context, stream, streams, arrivals);
  }

 private:
  ServerState& state_;
  int generate_ = 0;  // number of the method
};

}  // namespace tandem
