// A streaming Generate call: performs the decisions of StreamOut with gRPC.
//
// The object waits for a call on an arrivals thread (accept()). All other operations complete on
// the streams thread, but the request is parsed on the arrivals thread, where a long request delays
// no stream. The object owns itself until its last operation has completed; the sink shares it
// until the request's last event.
//
// Engine::pause() and resume() are called under the stream's lock, so they arrive in order.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>

#include "engine/base/memory_account.h"
#include "server/edge/stream_out.h"
#include "server/edge/timeouts.h"
#include "server/grpc/call_memory.h"
#include "server/grpc/call_record.h"
#include "server/grpc/call_thread.h"
#include "server/grpc/call_timeout.h"
#include "server/grpc/pending_chunk.h"
#include "server/grpc/raw_service.h"
#include "server/grpc/response_to_proto.h"
#include "server/server_state.h"

namespace tandem {

// One message to the client.
class StreamItem {
 public:
  explicit StreamItem(PendingChunk chunk) : chunk_(std::move(chunk)), index_(chunk_.index()) {}
  // An event other than a chunk. `bytes`: approximate size, for the limits of a slow reader.
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
  static constexpr int64_t kOverhead = 32;  // approximate, per chunk, on the wire and in the queue
  PendingChunk chunk_;
  grpc::ByteBuffer event_;
  int index_ = -1;
  int64_t bytes_ = kOverhead;
};

class GenerateCall final : public std::enable_shared_from_this<GenerateCall>,
                           private StreamPort<StreamItem> {
 public:
  // Waits for the next call; each arrival starts another accept(). An invalid request ends the call
  // with its status. All arguments outlive the call.
  static void accept(ServerState& state, RawService::AsyncMethod method, CallThread& arrivals,
                     CallThread& streams);

 private:
  class StreamSink;
  // Runs a member function of the call on a thread.
  struct Step final : CallThread::Work {
    Step(GenerateCall* c, void (GenerateCall::*m)()) : call(c), method(m) {}
    void work() override { (call->*method)(); }
    GenerateCall* const call;
    void (GenerateCall::* const method)();
  };

  GenerateCall(ServerState& state, RawService::AsyncMethod method, CallThread& arrivals,
               CallThread& streams);

  // On the arrivals thread:
  void arrived(bool ok);
  absl::Status admit();  // everything that is checked before the client's message is read
  void parse();
  absl::StatusOr<CheckedRequest> parse_request();
  absl::Status submit();

  // Events of the engine:
  void on_started(const Started& event);
  void on_chunk(Chunk event);
  void on_finished(const Finished& event);
  void on_failed(const absl::Status& status);
  void end(const absl::Status& status, std::optional<StreamItem> last = std::nullopt);

  // On the streams thread:
  void read(bool ok);
  void work() { out_.work(); }
  void written(bool ok) { out_.written(ok); }
  void finished(bool) { out_.finished(); }
  void done(bool ok);  // by Finish() or by a disconnect

  // StreamPort:
  void post() override { streams_.post(&work_); }
  void pause() override { engine_->pause(id_); }
  void resume() override { engine_->resume(id_); }
  void cancel() override { engine_->cancel(id_); }
  void hold(int64_t bytes) override { unread_memory_.resize(bytes); }
  void write(StreamItem item) override;
  void write_last(StreamItem item) override;
  void finish(const absl::Status& status) override;
  void release() override;

  const RawService::AsyncMethod method_;
  CallThread& arrivals_;
  CallThread& streams_;
  std::shared_ptr<GenerateCall> self_;  // until released
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;  // until it is parsed
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> writer_{&context_};
  RawService::Arrival arrived_;
  CallThread::Completion read_, written_, finished_, done_;
  Step parse_{this, &GenerateCall::parse};
  Step work_{this, &GenerateCall::work};
  StreamOut<StreamItem> out_;
  bool entered_ = false;  // counted in state.calls
  bool has_request_ = false;
  bool abandoned_ = false;  // is_abandoned()
  Timeouts::Timeout request_timeout_, answer_timeout_;
  MemoryAccount::Charge memory_;         // of the call and its request
  MemoryAccount::Charge unread_memory_;  // resized under the stream's lock

  CallRecord record_;  // its `info` is set before any operation starts
                       // Set before the sink starts:
  TokenBytes token_bytes_;
  bool with_tokens_ = false;
  Engine* engine_ = nullptr;
  RequestId id_ = 0;  // set before out_.attach()
};

}  // namespace tandem
