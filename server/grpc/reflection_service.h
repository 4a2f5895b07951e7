// grpc.reflection.v1.ServerReflection, and v1alpha, which has the same wire format: describes the
// server's protos to tools such as grpcurl. (gRPC 1.51 has v1alpha only, with a thread per call;
// newer tools use v1.)
//
// Needs no credentials, so calls (ServerState::reflection_calls) and request sizes are limited.
// Uses no thread of its own. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "grpc/reflection/v1/reflection.pb.h"
#include "server/edge/open_calls.h"
#include "server/edge/timeouts.h"
#include "server/grpc/raw_service.h"

namespace tandem {

class ReflectionService final : public RawService {
 public:
  static constexpr size_t kMaxRequest = 4096;  // bytes

  // `services`: full names of the services to list. Every linked proto can be described. `calls`
  // and `timeouts` outlive this.
  ReflectionService(std::vector<std::string> services, OpenCalls* calls, Timeouts* timeouts);

  // The response to one request of a stream.
  grpc::reflection::v1::ServerReflectionResponse answer(
      const grpc::reflection::v1::ServerReflectionRequest& request) const;

 private:
  class Call;

  const std::vector<std::string> services_;
  OpenCalls& calls_;
  Timeouts& timeouts_;
};

}  // namespace tandem
