// tandem.v1.Admin: loads and unloads LoRA adapters and deployments.
#pragma once

#include "server/grpc/raw_service.h"
#include "server/server_state.h"

namespace tandem {

class AdminService final : public RawService {
 public:
  // `state` outlives the service.
  explicit AdminService(ServerState& state);
};

}  // namespace tandem
