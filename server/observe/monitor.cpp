#include "server/observe/monitor.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/thread.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/observe/log.h"

namespace tandem {
namespace {

constexpr auto kInterval = std::chrono::seconds(1);
// gRPC, the acceptor and the HTTP API respond within milliseconds, on a busy machine within
// seconds.
constexpr Duration kMaxDelay = std::chrono::seconds(10);

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string late(const std::string& what, Duration since) {
  return absl::StrCat(what, " for ", static_cast<int64_t>(seconds(since)), " s");
}

}  // namespace

// A client in the same process.
class Monitor::Probe {
 public:
  // Connects at once: later there may be no file descriptor left.
  explicit Probe(grpc::Server* server) : server_(server) { connect(); }

  // Sends a check and waits for the response.
  void check() {
    if (stub_ == nullptr && !connect()) return;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kInterval);
    const grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    // Any other status is a response, even a refusal.
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return;
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      stub_.reset();
    } else {
      responded_ = now();
    }
  }
  Duration since_response() const { return now() - responded_; }

 private:
  // False: no file descriptor is left. gRPC would abort the process.
  bool connect() {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return false;
    grpc::AddInsecureChannelFromFd(server_, ends[0]);
    stub_ = grpc::health::v1::Health::NewStub(grpc::CreateInsecureChannelFromFd("self", ends[1]));
    return true;
  }

  grpc::Server* const server_;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  TimePoint responded_ = now();
};

Monitor::Monitor(ServerState* state, grpc::Server* server, const Acceptor* acceptor,
                 OpenAiApi* openai, std::function<void()> changed)
    : state_(*state),
      acceptor_(*acceptor),
      openai_(openai),
      changed_(std::move(changed)),
      probe_(std::make_unique<Probe>(server)),
      thread_(start_thread("the monitor", [this] { run(); })) {}

Monitor::~Monitor() { stop(); }

void Monitor::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  thread_.join();
  probe_.reset();  // closes its connection
}

std::string Monitor::trouble() const {
  const MutexLock lock(&mutex_);
  return trouble_;
}

void Monitor::run() {
  MutexLock lock(&mutex_);
  while (!stopped_.wait_for(lock, kInterval,
                            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; })) {
    lock.unlock();
    probe_->check();
    std::string trouble = find_trouble();
    const bool stuck = !trouble.empty();
    const bool changed = state_.stuck.exchange(stuck) != stuck;
    if (changed && stuck) log_error("stuck", {{"what", trouble}});
    if (changed && !stuck) log_info("unstuck");
    lock.lock();
    trouble_ = std::move(trouble);
    lock.unlock();
    if (changed) changed_();
    lock.lock();
  }
}

std::string Monitor::find_trouble() {
  if (probe_->since_response() > kMaxDelay) {
    return late("the gRPC server has not responded", probe_->since_response());
  }
  if (acceptor_.since_last_poll() > kMaxDelay) {
    return late("no connection has been accepted", acceptor_.since_last_poll());
  }
  if (const Duration stalled = openai_ == nullptr ? Duration::zero() : openai_->stalled_for();
      stalled > kMaxDelay) {
    return late("the OpenAI-compatible API has not responded", stalled);
  }
  const Engine* const engine = state_.engine.load();
  if (engine == nullptr) return "";
  const Vitals vitals = engine->vitals();
  if (vitals.step > state_.config.stuck) {
    return late("the loop has been in one step", vitals.step);
  }
  for (const auto& [device, since] : vitals.batches) {
    if (since > state_.config.stuck) {
      return late(absl::StrCat("device ", device, " has been at one batch"), since);
    }
  }
  return "";
}

}  // namespace tandem
