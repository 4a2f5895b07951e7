// A minimal server of tandem.v1.Generation.Generate, as a lower bound for the cost of streaming:
// gRPC's callback API, and a chunk of one token for every stream at every tick of one thread.
//
//   build/release/bin/bare_streamer --port-file=P --trace-file=T [--tick-seconds=0.02]
//                                   [--max-streams=N]
//
// For each token it does only the unavoidable work: it fills a message, serializes it and starts a
// write. It has no queue, no limits and no text. Its messages are as large as tandem-server's
// messages of one token, and ticks are traced like batches of the fake device
// (engine/backend/fake/trace.h). A stream whose last write is still in flight misses the tick; the
// number of missed ticks is printed at the end.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/fake/trace.h"
#include "engine/base/flags.h"
#include "rpc/event_engine.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem {
namespace {

struct Options {
  std::optional<std::string> port_file;
  std::optional<std::string> trace_file;
  std::optional<double> tick_seconds;
  std::optional<double> max_streams;
};

class Stream;

// All streams, and the thread that sends each of them a token at every tick.
class Ticker {
 public:
  Ticker(Duration period, std::unique_ptr<BatchTrace> trace)
      : period_(period), trace_(std::move(trace)), thread_([this] { run(); }) {}
  ~Ticker() {
    stop_.store(true);
    thread_.join();
  }
  void add(std::shared_ptr<Stream> stream) {
    const std::lock_guard lock(mutex_);
    joining_.push_back(std::move(stream));
  }
  int64_t missed() const { return missed_.load(); }

 private:
  void run();

  const Duration period_;
  const std::unique_ptr<BatchTrace> trace_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> missed_{0};
  std::vector<std::shared_ptr<Stream>> streams_;  // used by the thread only
  std::mutex mutex_;
  std::vector<std::shared_ptr<Stream>> joining_;  // guarded by mutex_
  std::thread thread_;                            // last: it uses the other members
};

class Stream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit Stream(const v1::GenerateRequest& request) : left_(request.max_new_tokens()) {
    v1::Started* const started = message_.mutable_started();
    started->set_request_id("r");
    started->set_prompt_tokens(request.token_ids().ids_size());
    started->set_method(v1::METHOD_AUTOREGRESSIVE);
    started->set_contract(v1::CONTRACT_EXACT);
  }
  void start(std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    StartWrite(&message_);
  }

  enum Outcome { kSent, kMissed, kOver };
  // On the ticker's thread only.
  Outcome tick(Token token) {
    if (gone_.load(std::memory_order_acquire)) {
      Finish(grpc::Status::CANCELLED);
      return kOver;
    }
    if (busy_.exchange(true, std::memory_order_acquire)) return kMissed;
    if (left_ == 0) {
      message_.mutable_finished()->set_finish_reason(v1::FINISH_REASON_MAX_TOKENS);
      StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
      return kOver;
    }
    --left_;
    // The message is reused: a token allocates nothing.
    v1::Chunk* const chunk = message_.mutable_chunk();
    if (chunk->tokens_size() == 0) {
      v1::Token* const made = chunk->add_tokens();
      made->set_proposed(v1::SOURCE_LARGE);
      made->set_confirmed(v1::SOURCE_LARGE);
    }
    chunk->mutable_tokens(0)->set_id(token);
    chunk->mutable_text()->assign(1, static_cast<char>(token));
    StartWrite(&message_);
    return kSent;
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) gone_.store(true, std::memory_order_release);
    busy_.store(false, std::memory_order_release);
  }
  void OnCancel() override { gone_.store(true, std::memory_order_release); }
  void OnDone() override { const std::shared_ptr<Stream> last = std::move(self_); }

  std::shared_ptr<Stream> self_;  // gRPC's reference, until OnDone()
  std::atomic<bool> busy_{true};  // a write is in flight, first that of `started`
  std::atomic<bool> gone_{false};
  int64_t left_;
  v1::GenerateResponse message_;
};

void Ticker::run() {
  TimePoint next = std::chrono::steady_clock::now() + period_;
  while (!stop_.load()) {
    std::this_thread::sleep_until(next);
    next = std::max(next + period_, std::chrono::steady_clock::now());
    {
      const std::lock_guard lock(mutex_);
      for (auto& stream : joining_) streams_.push_back(std::move(stream));
      joining_.clear();
    }
    if (streams_.empty()) continue;
    const int64_t number = trace_->begin();
    trace_->done(number, std::chrono::steady_clock::now());
    const Token token = BatchTrace::token(number);
    std::erase_if(streams_, [&](const std::shared_ptr<Stream>& stream) {
      const Stream::Outcome outcome = stream->tick(token);
      if (outcome == Stream::kMissed) missed_.fetch_add(1);
      return outcome == Stream::kOver;
    });
  }
}

class Service final : public v1::Generation::CallbackService {
 public:
  explicit Service(Ticker* ticker) : ticker_(ticker) {}
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext*, const v1::GenerateRequest* request) override {
    const auto stream = std::make_shared<Stream>(*request);
    stream->start(stream);
    ticker_->add(stream);
    return stream.get();
  }

 private:
  Ticker* const ticker_;
};

int run(const Options& options) {
  auto trace = BatchTrace::open(*options.trace_file);
  if (!trace.ok()) {
    std::fprintf(stderr, "bare_streamer: %s\n", trace.status().ToString().c_str());
    return 1;
  }
  sigset_t ends;  // blocked before any thread starts, so that all threads inherit the mask
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  const double period = options.tick_seconds.value_or(0.02);
  Ticker ticker(Duration(static_cast<int64_t>(period * 1e9)), *std::move(trace));
  Service service(&ticker);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(options.max_streams.value_or(1024)));
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::ofstream(*options.port_file) << "grpc=127.0.0.1:" << port << "\n";

  int signal = 0;
  sigwait(&ends, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  std::fprintf(stderr, "bare_streamer: %lld ticks missed\n",
               static_cast<long long>(ticker.missed()));
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Options options;
  tandem::Flags flags;
  flags.text("port-file", "FILE", "the address is written here", &options.port_file);
  flags.text("trace-file", "FILE", "when each tick was", &options.trace_file);
  flags.number("tick-seconds", "SECONDS", "between the tokens of a stream; default 0.02", 1e-4, 60,
               &options.tick_seconds);
  flags.number("max-streams", "N", "per connection; default 1024", 1, 1 << 20,
               &options.max_streams);
  const auto rest = flags.parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!rest.ok() || !rest->empty() || !options.port_file || !options.trace_file) {
    std::fprintf(stderr, "%s\n%s", rest.status().ToString().c_str(), flags.help().c_str());
    return 2;
  }
  tandem::retain_event_engine();
  return tandem::run(options);
}
