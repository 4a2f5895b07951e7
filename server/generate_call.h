// A streaming Generate call.
//
// The engine produces events through a Sink, gRPC takes one message at a time. In between lies a
// queue: while a write is in flight, further chunks are joined into one message, so a slow reader
// costs messages, not memory. When more lies there than ServerConfig::max_unread_bytes or
// max_unread_tokens, the request is paused, and goes on when less than half does.
//
// Owned by shared_ptr: by gRPC through `self_` until OnDone, and by the sink until its last event.
// All state is guarded by mutex_; gRPC never runs a reaction inside a call that we make, so
// starting a write under the lock is safe. Of the engine, only pause() and resume() are called
// under it, so that they come to it in order.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "server/call_info.h"
#include "server/response_to_proto.h"
#include "server/server_state.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // Reads, checks and submits the request; whatever goes wrong ends the call.
  static GenerateCall* start(ServerState& state, grpc::CallbackServerContext* context,
                             const grpc::ByteBuffer& request);

 private:
  class StreamSink;

  GenerateCall(ServerState& state, grpc::CallbackServerContext* context);
  absl::Status submit(const grpc::ByteBuffer& bytes);

  // From the engine.
  void on_started(const Started& event);
  void on_chunk(Chunk event);
  void on_finished(const Finished& event);
  void on_failed(const absl::Status& status);

  // From gRPC.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // REQUIRES: mutex_ is held, for what ends in _locked.
  struct Waiting {
    v1::GenerateResponse message;
    int choice = -1;
    size_t bytes = 0;
  };
  void push_locked(Waiting waiting);
  Waiting* joinable_locked(int choice, size_t bytes);
  void end_locked(absl::Status status);
  void pump_locked();
  void steer_locked();
  void cancel_engine();

  ServerState& state_;
  CallInfo info_;
  std::shared_ptr<GenerateCall> self_;
  TokenText token_text_;  // set before the sink starts
  int64_t choices_ = 1;   // likewise; then counts those that have not ended

  std::mutex mutex_;
  std::deque<Waiting> queue_;
  v1::GenerateResponse spare_;  // a sent chunk: its memory serves the next one
  size_t queued_bytes_ = 0;
  size_t queued_tokens_ = 0;
  bool paused_ = false;
  grpc::ByteBuffer in_flight_;
  bool writing_ = false;
  std::optional<absl::Status> end_;  // no events are taken once set
  bool finish_sent_ = false;
  bool cancel_wanted_ = false;
  Engine* engine_ = nullptr;
  std::optional<RequestId> id_;
  std::optional<double> first_token_seconds_;
  CallSummary summary_;
};

}  // namespace tandem
