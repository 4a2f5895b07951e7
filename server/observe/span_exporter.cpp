#include "server/observe/span_exporter.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "engine/base/thread.h"
#include "engine/base/version.h"
#include "server/observe/log.h"
#include "server/observe/otlp_attributes.h"

namespace tandem {
namespace {

namespace otel = opentelemetry::proto;

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Whether OTLP allows a retry.
bool is_retryable(const absl::Status& status) {
  using enum absl::StatusCode;
  return absl::c_linear_search(std::array{kCancelled, kDeadlineExceeded, kResourceExhausted,
                                          kAborted, kOutOfRange, kUnavailable, kDataLoss},
                               status.code());
}

}  // namespace

SpanExporter::SpanExporter(Options options, CallSpans spans, std::unique_ptr<SpanSender> sender)
    : options_(std::move(options)), spans_(std::move(spans)), sender_(std::move(sender)) {
  otel::trace::v1::ResourceSpans* const of = empty_.add_resource_spans();
  set_attribute("service.name", options_.service_name, of->mutable_resource());
  set_attribute("service.version", kVersion, of->mutable_resource());
  set_attribute("service.instance.id", make_request_id(), of->mutable_resource());
  set_attribute("host.name", host_name(), of->mutable_resource());
  otel::trace::v1::ScopeSpans* const scope = of->add_scope_spans();
  scope->mutable_scope()->set_name("tandem.server");
  scope->mutable_scope()->set_version(kVersion);
  thread_ = start_thread("spans", [this] { run(); });
}

void SpanExporter::add(EndedCall call) {
  size_t waiting = 0;
  {
    const MutexLock lock(&mutex_);
    if (stopping_ || waiting_.size() >= options_.max_calls) {
      dropped_.fetch_add(1);
      return;
    }
    waiting_.push_back(std::move(call));
    waiting = waiting_.size();
  }
  // The first call starts the wait for a batch; a full batch ends it.
  if (waiting == 1 || waiting == options_.batch_calls) wake_.notify_one();
}

void SpanExporter::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  sender_->hurry();
  thread_.join();
}

void SpanExporter::run() {
  for (;;) {
    const std::deque<EndedCall> calls = take_batch();
    if (calls.empty()) break;
    const SpanBatch batch = batch_of(calls);
    if (batch.resource_spans(0).scope_spans(0).spans_size() == 0) continue;  // no call is sampled
    if (!send(batch, static_cast<int64_t>(calls.size())) && is_stopping()) break;
  }
  const MutexLock lock(&mutex_);
  dropped_.fetch_add(static_cast<int64_t>(waiting_.size()));
  waiting_.clear();
}

bool SpanExporter::is_stopping() {
  const MutexLock lock(&mutex_);
  return stopping_;
}

// Empty: stop() has been called and the queue is empty.
std::deque<EndedCall> SpanExporter::take_batch() {
  MutexLock lock(&mutex_);
  wake_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  });
  wake_.wait_for(lock, options_.every, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || waiting_.size() >= options_.batch_calls;
  });
  if (waiting_.size() <= options_.batch_calls) return std::exchange(waiting_, {});
  std::deque<EndedCall> out;
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(options_.batch_calls);
  std::move(waiting_.begin(), end, std::back_inserter(out));
  waiting_.erase(waiting_.begin(), end);
  return out;
}

SpanBatch SpanExporter::batch_of(const std::deque<EndedCall>& calls) {
  const Duration unix_offset = std::chrono::system_clock::now().time_since_epoch() -
                               std::chrono::steady_clock::now().time_since_epoch();
  SpanBatch out = empty_;
  auto* const spans = out.mutable_resource_spans(0)->mutable_scope_spans(0)->mutable_spans();
  for (const EndedCall& call : calls) {
    for (otel::trace::v1::Span& span : spans_.of(call, unix_offset))
      *spans->Add() = std::move(span);
  }
  return out;
}

// False: the batch was not delivered.
bool SpanExporter::send(const SpanBatch& batch, int64_t calls) {
  Duration between = options_.first_pause;
  for (int left = options_.tries; left > 0; --left) {
    const bool last = is_stopping();
    const absl::Status sent =
        sender_->send(batch, last ? options_.last_send_time : options_.send_time);
    if (sent.ok()) {
      exported_.fetch_add(batch.resource_spans(0).scope_spans(0).spans_size());
      if (std::exchange(unreachable_, false)) log_info("otlp", {{"collector", "reachable"}});
      return true;
    }
    if (!std::exchange(unreachable_, true)) {
      log_warn("otlp", {{"error", sent.message(), LogField::kMaxMessage}});
    }
    if (last || !is_retryable(sent) || left == 1) break;
    pause(between);
    between *= 2;
  }
  dropped_.fetch_add(calls);
  return false;
}

void SpanExporter::pause(Duration d) {
  MutexLock lock(&mutex_);
  wake_.wait_for(lock, d, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
}

}  // namespace tandem
