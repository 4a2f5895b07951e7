// Sends spans of calls to a collector, on a thread of its own. Whoever ends a call hands it over
// and goes on: when the collector is slow or away, calls wait here up to a bound, and what is
// beyond it is dropped and counted.
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
  // Waits for the collector's answer, but no longer than `limit`.
  virtual absl::Status send(const SpanBatch& batch, Duration limit) = 0;
  // Ends a send() that waits, and keeps later ones short. From another thread.
  virtual void hurry() = 0;
};

class SpanExporter {
 public:
  struct Options {
    std::string service_name = "tandem";
    size_t max_calls = 2048;  // that wait
    size_t batch_calls = 256;
    Duration every = std::chrono::seconds(1);  // a batch that is not full leaves after this
    Duration send_time = std::chrono::seconds(10);
    Duration last_send_time = std::chrono::seconds(1);  // while the server ends
    int tries = 5;                                      // of a batch that may be tried again
    Duration first_pause = std::chrono::seconds(1);     // between two tries, then twice as long
  };

  SpanExporter(Options options, CallSpans spans, std::unique_ptr<SpanSender> sender);
  ~SpanExporter() { stop(); }  // may take last_send_time

  // Never blocks.
  void add(EndedCall call);
  // Sends what is there, as far as the collector takes it at once, and nothing after it.
  void stop();

  int64_t exported() const { return exported_.load(); }  // spans, since the start
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
  SpanBatch empty_;  // with what all batches begin with
  bool away_ = false;
  std::atomic<int64_t> exported_{0};
  std::atomic<int64_t> dropped_{0};

  Mutex mutex_;
  CondVar wake_;
  std::deque<EndedCall> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the rest
};

// Over gRPC to `endpoint`: "HOST:PORT" or "http://HOST:PORT", or "https://HOST:PORT" with TLS.
std::unique_ptr<SpanSender> span_sender(const std::string& endpoint);

}  // namespace tandem
