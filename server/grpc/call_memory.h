// Sizes that calls charge to the memory account (engine/base/memory_account.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/memory_account.h"
#include "server/edge/peer.h"
#include "server/grpc/call_info.h"
#include "server/server_state.h"

namespace tandem {

// An open call: gRPC's call, its metadata and the objects of the server. Measured:
// docs/security.md.
inline constexpr int64_t kCallBytes = 40 << 10;

// A message, its conversion for the engine, and one copy of its largest part.
inline constexpr int64_t kCopiesOfRequest = 3;

// Objects of an answer, for each byte of its wire format. The smallest token takes some 20 bytes
// there.
inline constexpr int64_t kAnswerFactor = 8;

// A charge to the client and the host of a call.
inline absl::StatusOr<MemoryAccount::Charge> charge_call(const ServerState& state,
                                                         const CallInfo& info, int64_t bytes) {
  return state.memory->charge(info.client, host_of(info.peer), bytes);
}

}  // namespace tandem
