// tandem.v1.Models: what is served.
#pragma once

#include "server/grpc/raw_service.h"
#include "server/server_state.h"

namespace tandem {

class ModelsService final : public RawService {
 public:
  // `state` outlives the service.
  explicit ModelsService(ServerState& state);
};

}  // namespace tandem
