// grpc.reflection.v1.ServerReflection, and v1alpha, which is the same on the wire: what the
// server's protos say, for tools such as grpcurl. (gRPC 1.51 brings v1alpha only, with a thread for
// each call, and newer tools ask for v1.)
//
// Needs no credentials, so it is bounded: in calls (ServerState::reflection_calls), and in what a
// request may hold. Takes no thread. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "grpc/reflection/v1/reflection.pb.h"
#include "server/edge/open_calls.h"
#include "server/grpc/raw_service.h"

namespace tandem {

class ReflectionService final : public RawService {
 public:
  static constexpr size_t kMaxRequest = 4096;  // bytes

  // `services`: full names of what is served; what is described is all that is linked in. `calls`
  // outlives this.
  ReflectionService(std::vector<std::string> services, OpenCalls* calls);

  // The answer to one request of a stream.
  grpc::reflection::v1::ServerReflectionResponse answer(
      const grpc::reflection::v1::ServerReflectionRequest& request) const;

 private:
  class Call;

  const std::vector<std::string> services_;
  OpenCalls& calls_;
};

}  // namespace tandem
