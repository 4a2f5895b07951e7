// Sends the spans of calls to an OTLP collector, on a thread of its own. add() does not block.
// While the collector is slow or unreachable, calls are queued up to a limit; the excess is dropped
// and counted.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.pb.h"
#include "server/observe/call_spans.h"

namespace tandem {

using SpanBatch = opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;

class SpanSender {
 public:
  virtual ~SpanSender() = default;
  // Waits for the collector's response, at most `limit`.
  virtual absl::Status send(const SpanBatch& batch, Duration limit) = 0;
  // Ends a waiting send() and shortens later ones. Called on another thread.
  virtual void hurry() = 0;
};

class SpanExporter {
 public:
  struct Options {
    std::string service_name = "tandem";
    size_t max_calls = 2048;  // queued
    size_t batch_calls = 256;
    Duration every = std::chrono::seconds(1);  // maximum age of a batch that is not full
    Duration send_time = std::chrono::seconds(10);
    Duration last_send_time = std::chrono::seconds(1);  // during shutdown
    int tries = 5;                                      // per batch, if the error is retryable
    Duration first_pause = std::chrono::seconds(1);     // between tries; doubles
  };

  SpanExporter(Options options, CallSpans spans, std::unique_ptr<SpanSender> sender);
  ~SpanExporter() { stop(); }  // may take Options::last_send_time

  // Does not block.
  void add(EndedCall call);
  // Sends the queued calls once, without retries. Later calls are dropped.
  void stop();

  int64_t exported() const { return exported_.load(); }  // spans, since start
  int64_t dropped() const { return dropped_.load(); }    // calls

 private:
  void run();
  std::deque<EndedCall> take_batch();
  SpanBatch batch_of(const std::deque<EndedCall>& calls);
  bool send(const SpanBatch& batch, int64_t calls);
  bool is_stopping();
  void pause(Duration d);

  const Options options_;
  CallSpans spans_;
  const std::unique_ptr<SpanSender> sender_;
  SpanBatch empty_;  // the resource and scope of every batch
  bool unreachable_ = false;
  std::atomic<int64_t> exported_{0};
  std::atomic<int64_t> dropped_{0};

  Mutex mutex_;
  CondVar wake_;
  std::deque<EndedCall> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the other members
};

// Over gRPC to `endpoint`: "HOST:PORT" or "http://HOST:PORT", or "https://HOST:PORT" with TLS.
std::unique_ptr<SpanSender> span_sender(const std::string& endpoint);

}  // namespace tandem
