// A streaming Generate call.
//
// The engine produces events through a Sink, gRPC takes one message at a time. In between lies a
// queue: while a write is in flight, further chunks are joined into one message, so a slow reader
// costs messages, not memory. When more of the stream is on its way to the client, from the loop
// on, than ServerConfig::max_unread_bytes or max_unread_tokens, the request is paused; it goes on
// when less than half is.
//
// Life: waits for a client (accept()), on the thread for arrivals; from then on belongs to the
// thread for streams, which starts every operation and hears of its end. Owned by itself until
// its last operation is done, and by the sink until its last event. What the engine's threads and
// that thread share is guarded by mutex_. Of the engine, only pause() and resume() are called under
// it, so that they come to it in order.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/call_info.h"
#include "server/call_thread.h"
#include "server/pending_chunk.h"
#include "server/response_to_proto.h"
#include "server/server_state.h"

namespace tandem {

class GenerationService;

class GenerateCall final : public std::enable_shared_from_this<GenerateCall>,
                           private CallThread::Work {
 public:
  // Waits for the next client; when it has come, another call waits in this one's place. Whatever
  // is wrong with the request ends the call. Everything outlives it.
  static void accept(ServerState& state, GenerationService& service, CallThread& arrivals,
                     CallThread& streams);

 private:
  class StreamSink;

  GenerateCall(ServerState& state, GenerationService& service, CallThread& arrivals,
               CallThread& streams);

  // Thread for arrivals.
  void arrived(bool ok);
  absl::Status submit();

  // From the engine.
  void on_made(int64_t tokens);
  void on_started(const Started& event);
  void on_chunk(Chunk event);
  void on_finished(const Finished& event);
  void on_failed(const absl::Status& status);

  // Thread for streams.
  void work() override;  // starts the next operation if none is in flight: a write, or the end
  void written(bool ok);
  void finished(bool ok);
  void over(bool ok);  // by Finish, or because the client is gone
  void let_go();

  // REQUIRES: mutex_ is held, for what ends in _locked.
  struct Waiting {
    bool is_chunk = false;
    PendingChunk chunk;
    grpc::ByteBuffer event;  // what is no chunk
    int64_t bytes = 0;
  };
  void push_locked(Waiting waiting);
  void push_event_locked(grpc::ByteBuffer event, size_t bytes);
  void end_locked(absl::Status status);
  void wake_locked();
  void steer_locked();

  ServerState& state_;
  GenerationService& service_;
  CallThread& arrivals_;
  CallThread& streams_;
  std::shared_ptr<GenerateCall> self_;  // until over, finished and let go of
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;  // until it is read
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_{&context_};
  CallThread::Completion arrived_, written_, finished_, over_;
  bool is_finished_ = false;  // thread for streams
  bool is_over_ = false;      // thread for streams

  CallInfo info_;
  TokenBytes token_bytes_;                 // set before the sink starts
  bool with_tokens_ = false;               // likewise
  int64_t choices_ = 1;                    // likewise; then counts those that have not ended
  std::atomic<int64_t> unread_tokens_{0};  // made by the engine, and not handed to gRPC

  std::mutex mutex_;
  std::vector<Waiting> queue_;  // a few: what is of one choice is joined
  int64_t unread_bytes_ = 0;    // in queue_
  bool paused_ = false;
  bool posted_ = false;  // work() will come
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
