// inference.GRPCInferenceService: health and metadata of the Open Inference Protocol (v2), for
// KServe and its tools.
//
// Health needs no credentials, as grpc.health.v1; its calls are limited in the same way.
#pragma once

#include "server/grpc/raw_service.h"
#include "server/health/health_call.h"
#include "server/server_state.h"

namespace tandem {

class OpenInferenceService final : public RawService {
 public:
  // `state` outlives the service.
  explicit OpenInferenceService(ServerState& state);
};

}  // namespace tandem
