#include "server/health/health_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/edge/peer.h"
#include "server/grpc/call_timeout.h"
#include "server/grpc/grpc_status.h"

namespace tandem {
namespace {

// Owns itself until OnDone().
class AnsweredCall final : public HealthCall {
 public:
  AnsweredCall(const HealthMethod& method, grpc::CallbackServerContext* context,
               HealthAnswer answer)
      : HealthCall(method, context), answer_(std::move(answer)) {}

 private:
  void on_request(const grpc::ByteBuffer& request) override {
    absl::StatusOr<grpc::ByteBuffer> response = answer_(request);
    if (!response.ok()) return refuse(response.status());
    response_ = *std::move(response);
    limit_time();
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void refuse(const absl::Status& status) override { Finish(to_grpc(status, "")); }
  void OnDone() override {
    leave();
    delete this;
  }

  const HealthAnswer answer_;
  grpc::ByteBuffer response_;
};

}  // namespace

HealthCall::HealthCall(const HealthMethod& method, grpc::CallbackServerContext* context)
    : method_(method), peer_(context->peer()), host_(host_of(peer_)), context_(*context) {}

void HealthCall::start() {
  const absl::Status entered = method_.calls->enter(peer_);
  entered_ = entered.ok();
  if (!entered.ok()) return refuse(entered);
  limit_time();
  StartRead(&request_);
}

void HealthCall::limit_time() {
  cancel_after(kRequestTime, &context_, method_.timeouts, &timeout_);
}

void HealthCall::leave() {
  timeout_.stop();
  if (entered_) method_.calls->leave(peer_);
}

void HealthCall::OnReadDone(bool ok) {
  timeout_.stop();
  if (!ok) return refuse(absl::CancelledError("the client sent no request"));
  if (request_.Length() > method_.most_bytes) {  // not parsed
    return refuse(out_of_range(method_.field, absl::StrCat(request_.Length(), " bytes"),
                               absl::StrCat("at most ", method_.most_bytes)));
  }
  grpc::ByteBuffer request;
  request.Swap(&request_);
  on_request(request);
}

RawReactor* answer_health_call(const HealthMethod& method, grpc::CallbackServerContext* context,
                               HealthAnswer answer) {
  auto* const call = new AnsweredCall(method, context, std::move(answer));
  call->start();
  return call;
}

}  // namespace tandem
