// A streaming Generate call: what StreamOut decides, done with gRPC.
//
// Life: waits for a client (accept()), on a thread for arrivals. When one has come, its request
// is read; that and all other operations end on the thread for streams, but the request is parsed
// on its thread for arrivals, where a long one holds up no stream. Owned by itself until its last
// operation is done, and by the sink until its last event.
//
// Of the engine, pause() and resume() are called under the stream's lock, so that they come to it
// in order.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>

#include "server/edge/stream_out.h"
#include "server/grpc/call_record.h"
#include "server/grpc/call_thread.h"
#include "server/grpc/pending_chunk.h"
#include "server/grpc/raw_service.h"
#include "server/grpc/response_to_proto.h"
#include "server/server_state.h"

namespace tandem {

// What goes to the client in one message.
class StreamItem {
 public:
  explicit StreamItem(PendingChunk chunk) : chunk_(std::move(chunk)), index_(chunk_.index()) {}
  // An event that is no chunk; `bytes`: about, as it counts for a slow reader.
  StreamItem(const grpc::ByteBuffer& event, int64_t bytes) : event_(event), bytes_(bytes) {}

  int index() const { return index_; }
  int64_t tokens() const { return static_cast<int64_t>(chunk_.tokens()); }
  int64_t bytes() const { return bytes_ + static_cast<int64_t>(chunk_.bytes()); }
  void append(const StreamItem& later) {
    chunk_.append(later.chunk_);
    bytes_ += later.bytes_;
  }
  grpc::ByteBuffer to_buffer() const { return index_ < 0 ? event_ : chunk_.to_buffer(); }

 private:
  static constexpr int64_t kOverhead = 32;  // of a chunk, about, on the wire and in the queue
  PendingChunk chunk_;
  grpc::ByteBuffer event_;
  int index_ = -1;
  int64_t bytes_ = kOverhead;
};

class GenerateCall final : public std::enable_shared_from_this<GenerateCall>,
                           private StreamPort<StreamItem> {
 public:
  // Waits for the next client; when it has come, another call waits in this one's place. Whatever
  // is wrong with the request ends the call. Everything outlives it.
  static void accept(ServerState& state, RawService::AsyncMethod method, CallThread& arrivals,
                     CallThread& streams);

 private:
  class StreamSink;
  // Calls a method of the call on a thread.
  struct Step final : CallThread::Work {
    Step(GenerateCall* c, void (GenerateCall::*m)()) : call(c), method(m) {}
    void work() override { (call->*method)(); }
    GenerateCall* const call;
    void (GenerateCall::* const method)();
  };

  GenerateCall(ServerState& state, RawService::AsyncMethod method, CallThread& arrivals,
               CallThread& streams);

  // Thread for arrivals.
  void arrived(bool ok);
  void parse();
  absl::Status submit();

  // From the engine.
  void on_started(const Started& event);
  void on_chunk(Chunk event);
  void on_finished(const Finished& event);
  void on_failed(const absl::Status& status);
  void end(const absl::Status& status, std::optional<StreamItem> last = std::nullopt);

  // Thread for streams.
  void read(bool ok);
  void work() { out_.work(); }
  void written(bool ok) { out_.written(ok); }
  void finished(bool) { out_.finished(); }
  void over(bool ok);  // by Finish, or because the client is gone

  // What the stream wants done.
  void post() override { streams_.post(&work_); }
  void pause() override { engine_->pause(id_); }
  void resume() override { engine_->resume(id_); }
  void cancel() override { engine_->cancel(id_); }
  void write(StreamItem item) override;
  void write_last(StreamItem item) override;
  void finish(const absl::Status& status) override;
  void release() override;

  const RawService::AsyncMethod method_;
  CallThread& arrivals_;
  CallThread& streams_;
  std::shared_ptr<GenerateCall> self_;  // until over, finished and let go of
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;  // until it is read
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> writer_{&context_};
  RawService::Arrival arrived_;
  CallThread::Completion read_, written_, finished_, over_;
  Step parse_{this, &GenerateCall::parse};
  Step work_{this, &GenerateCall::work};
  StreamOut<StreamItem> out_;
  bool entered_ = false;  // in state_.calls

  CallRecord record_;       // its `info` is set before anything is started
  TokenBytes token_bytes_;  // set before the sink starts, as are these
  bool with_tokens_ = false;
  Engine* engine_ = nullptr;
  RequestId id_ = 0;  // set before out_.attach()
};

}  // namespace tandem
