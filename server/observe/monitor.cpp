#include "server/observe/monitor.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/observe/log.h"

namespace tandem {
namespace {

constexpr auto kEvery = std::chrono::seconds(1);
// gRPC, the acceptor and the OpenAI door answer within milliseconds; on a machine with much to do,
// seconds.
constexpr Duration kEdgeTime = std::chrono::seconds(10);

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string late(const std::string& what, Duration since) {
  return absl::StrCat(what, " for ", static_cast<int64_t>(seconds(since)), " s");
}

}  // namespace

// A client of the server in its own process.
class Monitor::Probe {
 public:
  // Connected from the start: later there may be no file for it.
  explicit Probe(grpc::Server* server) : server_(server) { connect(); }

  // Asks and waits for the answer.
  void ask() {
    if (stub_ == nullptr && !connect()) return;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kEvery);
    const grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    // Whatever it says, it has answered. A refusal is one.
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return;
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      stub_.reset();
    } else {
      answered_ = now();
    }
  }
  Duration since_answer() const { return now() - answered_; }

 private:
  // False: no file is left. gRPC ends the process when it is given none.
  bool connect() {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return false;
    grpc::AddInsecureChannelFromFd(server_, ends[0]);
    stub_ = grpc::health::v1::Health::NewStub(grpc::CreateInsecureChannelFromFd("self", ends[1]));
    return true;
  }

  grpc::Server* const server_;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  TimePoint answered_ = now();
};

Monitor::Monitor(ServerState* state, grpc::Server* server, const Acceptor* acceptor,
                 OpenAiApi* openai, std::function<void()> changed)
    : state_(*state),
      acceptor_(*acceptor),
      openai_(openai),
      changed_(std::move(changed)),
      probe_(std::make_unique<Probe>(server)),
      thread_([this] { run(); }) {}

Monitor::~Monitor() { stop(); }

void Monitor::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  thread_.join();
  probe_.reset();  // its connection
}

std::string Monitor::trouble() const {
  const MutexLock lock(&mutex_);
  return trouble_;
}

void Monitor::run() {
  MutexLock lock(&mutex_);
  while (!stopped_.wait_for(lock, kEvery,
                            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; })) {
    lock.unlock();
    probe_->ask();
    std::string trouble = look();
    const bool stuck = !trouble.empty();
    const bool changed = state_.stuck.exchange(stuck) != stuck;
    if (changed && stuck) log_error("stuck", {{"what", trouble}});
    if (changed && !stuck) log_info("gets_on_again");
    lock.lock();
    trouble_ = std::move(trouble);
    lock.unlock();
    if (changed) changed_();
    lock.lock();
  }
}

std::string Monitor::look() {
  if (probe_->since_answer() > kEdgeTime) {
    return late("the gRPC server has not answered", probe_->since_answer());
  }
  if (acceptor_.since_last_poll() > kEdgeTime) {
    return late("no connection has been accepted", acceptor_.since_last_poll());
  }
  if (const Duration owed = openai_ == nullptr ? Duration::zero() : openai_->look();
      owed > kEdgeTime) {
    return late("the OpenAI door has not answered", owed);
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
