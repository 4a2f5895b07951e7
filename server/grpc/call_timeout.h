// Cancels a call whose request does not arrive, or whose answer is not read, in time.
//
// gRPC's own deadlines are the client's choice. Without this, a client that sends no message, or
// reads no answer, keeps its call and its memory.
#pragma once

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <chrono>
#include <functional>

#include "engine/base/clock.h"
#include "server/edge/timeouts.h"

namespace tandem {

// The time in which a request message must arrive.
inline constexpr Duration kRequestTime = std::chrono::seconds(60);

// The time in which an answer must be read: `stalled`, and one second for each 64 KiB.
inline Duration answer_time(Duration stalled, int64_t bytes) {
  constexpr int64_t kBytesPerSecond = 64 << 10;
  return stalled + std::chrono::seconds(bytes / kBytesPerSecond);
}

// Cancels the call of `context` after `time`. Stop `timeout` before the call's last operation has
// been reported.
inline void cancel_after(Duration time, grpc::ServerContextBase* context, Timeouts* timeouts,
                         Timeouts::Timeout* timeout) {
  timeout->start(timeouts, time, [call = context->c_call()] {
    grpc_call_ref(call);  // the call may end before it is cancelled
    return std::function<void()>([call] {
      grpc_call_cancel_with_status(call, GRPC_STATUS_DEADLINE_EXCEEDED,
                                   "the request was not sent, or the answer not read, in time",
                                   nullptr);
      grpc_call_unref(call);
    });
  });
}

}  // namespace tandem
