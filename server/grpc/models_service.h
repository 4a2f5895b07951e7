// tandem.v1.Models: describes the models of the server.
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
