// A workaround for gRPC 1.51, for programs that open channels or serve.
#pragma once

#include <grpc/grpc.h>

namespace tandem {

// Keeps gRPC's default event engine for the life of the process. Call before the first channel or
// server is made. Thread-safe; cheap when called again.
//
// gRPC 1.51 holds the engine by a weak pointer, so it dies with the last channel that uses it. A
// poller thread may still wait in it then, finds its descriptor closed ("Epoll1Poller encountered
// epoll_wait error: Bad file descriptor") and aborts the process. A lame channel holds a reference
// and opens no connection; this one is never destroyed.
inline void retain_event_engine() {
  static grpc_channel* const channel = [] {
    grpc_init();
    return grpc_lame_client_channel_create("", GRPC_STATUS_UNAVAILABLE, "");
  }();
  static_cast<void>(channel);
}

}  // namespace tandem
