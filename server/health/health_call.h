// Calls of health, which need no credentials: each is counted, its small request is read, and its
// time is limited.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/edge/open_calls.h"
#include "server/edge/timeouts.h"
#include "server/grpc/raw_service.h"

namespace tandem {

// What calls of one method have in common. `calls` and `timeouts` outlive the calls.
struct HealthMethod {
  OpenCalls* calls;
  Timeouts* timeouts;
  size_t most_bytes;  // of a request
  const char* field;  // of the request, for the error of a larger one
};

class HealthCall : public RawReactor {
 public:
  HealthCall(const HealthMethod& method, grpc::CallbackServerContext* context);

  const std::string& host() const { return host_; }

  // REQUIRES: the object is owned.
  void start();

 protected:
  virtual void on_request(const grpc::ByteBuffer& request) = 0;
  virtual void refuse(const absl::Status& status) = 0;

  // Cancels the call unless its request arrives, or its answer is read, in time.
  void limit_time();
  // For OnDone.
  void leave();

 private:
  void OnReadDone(bool ok) override;

  const HealthMethod method_;
  const std::string peer_, host_;
  grpc::CallbackServerContext& context_;  // until OnDone()
  Timeouts::Timeout timeout_;
  bool entered_ = false;
  grpc::ByteBuffer request_;
};

// A call with one response, made at once.
using HealthAnswer = std::function<absl::StatusOr<grpc::ByteBuffer>(const grpc::ByteBuffer&)>;
RawReactor* answer_health_call(const HealthMethod& method, grpc::CallbackServerContext* context,
                               HealthAnswer answer);

}  // namespace tandem
