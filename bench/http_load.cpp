// Many concurrent readers of streams through either API of a server, with minimal work of their
// own. bench/peers/http_api.py runs it and uses the server's own token count.
//
//   build/release/bin/http_load --api=grpc|openai --address=HOST:PORT [--streams=64]
//                               [--connections=1] [--new-tokens=256] [--warm-up=2] [--seconds=5]
//
// A finished stream starts over. The first streams have different lengths, so that ends are spread
// evenly. "begin" and "end" are printed when the measured time starts and ends; the last line is
// "messages N failed M": events with text. OpenAI streams have one kept-alive connection each; gRPC
// streams share --connections.
#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/flags.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem {
namespace {

struct Options {
  std::optional<std::string> api, address;
  std::optional<double> streams, connections, new_tokens, warm_up, seconds;
};

struct Counts {
  std::atomic<bool> recording{false};
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> messages{0};
  std::atomic<int64_t> failed{0};

  void add(int64_t n) {
    if (recording.load(std::memory_order_relaxed)) messages.fetch_add(n);
  }
  void fail(const std::string& why) {
    if (!stopping.load() && failed.fetch_add(1) == 0) {
      std::fprintf(stderr, "http_load: %s\n", why.c_str());
    }
  }
};

// Distinct prompts, so that streams share no pages.
std::string prompt_of(int number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }

// The first request of a stream is shorter than the others.
int first_length(int number, int streams, int new_tokens) {
  return 1 + static_cast<int>(int64_t{new_tokens} * number / streams);
}

// --- gRPC

class GrpcStream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GrpcStream(Counts* counts, std::shared_ptr<v1::Generation::Stub> stub, int number, int new_tokens)
      : counts_(*counts), stub_(std::move(stub)), new_tokens_(new_tokens) {
    request_.set_model("fake");
    request_.set_temperature(0);
    request_.set_ignore_eos(true);
    request_.mutable_autoregressive();
    request_.set_text(prompt_of(number));
  }
  void start(int tokens) {
    request_.set_max_new_tokens(tokens);
    context_.emplace();
    stub_->async()->Generate(&*context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void stop() {
    context_->TryCancel();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return is_done_; });
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_chunk()) counts_.add(1);
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!counts_.stopping.load()) {
      if (status.ok()) return start(new_tokens_);
      counts_.fail(status.error_message());
    }
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    done_.notify_one();
  }

  Counts& counts_;
  const std::shared_ptr<v1::Generation::Stub> stub_;
  const int new_tokens_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  std::optional<grpc::ClientContext> context_;
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
};

// --- OpenAI-compatible API

class HttpStream {
 public:
  HttpStream(int number, int new_tokens, const sockaddr_in& to)
      : number_(number), new_tokens_(new_tokens), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~HttpStream() { close(fd_); }
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  int fd() const { return fd_; }
  bool start(int tokens) const {
    const std::string body = absl::StrCat(
        R"({"model":"fake","stream":true,"temperature":0,"max_tokens":)", tokens, R"(,"prompt":")",
        prompt_of(number_), R"(","tandem":{"method":"autoregressive","ignore_eos":true}})");
    const std::string request = absl::StrCat(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: ",
        body.size(), "\r\n\r\n", body);
    return connected_ &&
           write(fd_, request.data(), request.size()) == static_cast<ssize_t>(request.size());
  }
  // False: the stream is broken.
  bool take(Counts* counts) {
    const ssize_t n = read(fd_, buffer_.data(), buffer_.size());
    if (n <= 0) return false;
    // A piece may end within an event.
    tail_.append(buffer_.data(), static_cast<size_t>(n));
    int64_t events = 0;
    bool done = false;
    size_t at = 0;
    for (size_t found = 0; (found = tail_.find("data: ", at)) != std::string::npos;) {
      if (found + kEvent > tail_.size()) break;
      done = done || tail_.compare(found, kEvent, "data: [DONE]") == 0;
      at = found + kEvent;
      ++events;
    }
    if (tail_.find("HTTP/1.1 4") == 0) return false;
    tail_.erase(0, std::max(at, tail_.size() - std::min(tail_.size(), kEvent)));
    counts->add(events - (done ? 2 : 0));  // [DONE], and the end of the choice
    return !done || start(new_tokens_);
  }

 private:
  static constexpr size_t kEvent = 12;  // of "data: [DONE]"
  const int number_;
  const int new_tokens_;
  const int fd_;
  bool connected_ = false;
  std::array<char, 64 << 10> buffer_;
  std::string tail_;
};

// One thread reads all streams.
void read_all(Counts* counts, std::vector<std::unique_ptr<HttpStream>>* streams) {
  const int epoll = epoll_create1(0);
  for (auto& stream : *streams) {
    epoll_event event = {EPOLLIN, {.ptr = stream.get()}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, stream->fd(), &event);
  }
  std::array<epoll_event, 256> events;
  while (!counts->stopping.load()) {
    const int n = epoll_wait(epoll, events.data(), events.size(), 100);
    for (int i = 0; i < n; ++i) {
      auto* const stream = static_cast<HttpStream*>(events[static_cast<size_t>(i)].data.ptr);
      if (stream->take(counts)) continue;
      counts->fail("a stream broke");
      epoll_ctl(epoll, EPOLL_CTL_DEL, stream->fd(), nullptr);
    }
  }
  close(epoll);
}

// ---

void measure(const Options& options, Counts* counts) {
  const auto wait = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  const auto say = [](const char* what) {
    std::puts(what);
    std::fflush(stdout);
  };
  wait(options.warm_up.value_or(2));
  counts->recording.store(true);
  say("begin");
  wait(options.seconds.value_or(5));
  counts->recording.store(false);
  say("end");
  wait(0.3);  // time for the caller to read the server's metrics with all streams open
  counts->stopping.store(true);
}

int run(const Options& options) {
  const int streams = static_cast<int>(options.streams.value_or(64));
  const int new_tokens = static_cast<int>(options.new_tokens.value_or(256));
  const int connections = static_cast<int>(options.connections.value_or(1));
  Counts counts;
  if (*options.api == "grpc") {
    std::vector<std::shared_ptr<v1::Generation::Stub>> stubs;
    for (int i = 0; i < connections; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection per channel
      stubs.push_back(v1::Generation::NewStub(grpc::CreateCustomChannel(
          *options.address, grpc::InsecureChannelCredentials(), arguments)));
    }
    std::vector<std::unique_ptr<GrpcStream>> readers;
    for (int i = 0; i < streams; ++i) {
      readers.push_back(std::make_unique<GrpcStream>(
          &counts, stubs[static_cast<size_t>(i % connections)], i, new_tokens));
      readers.back()->start(first_length(i, streams, new_tokens));
    }
    measure(options, &counts);
    for (const auto& reader : readers) reader->stop();
  } else {
    const size_t colon = options.address->rfind(':');
    int port = 0;
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    if (colon == std::string::npos ||
        !absl::SimpleAtoi(options.address->substr(colon + 1), &port) ||
        inet_pton(AF_INET, options.address->substr(0, colon).c_str(), &to.sin_addr) != 1) {
      std::fputs("http_load: --address: not IPV4:PORT\n", stderr);
      return 2;
    }
    to.sin_port = htons(static_cast<uint16_t>(port));
    std::vector<std::unique_ptr<HttpStream>> readers;
    for (int i = 0; i < streams; ++i) {
      readers.push_back(std::make_unique<HttpStream>(i, new_tokens, to));
      if (!readers.back()->start(first_length(i, streams, new_tokens)))
        counts.fail("no connection");
    }
    std::thread reader([&] { read_all(&counts, &readers); });
    measure(options, &counts);
    reader.join();
  }
  std::printf("messages %lld failed %lld\n", static_cast<long long>(counts.messages.load()),
              static_cast<long long>(counts.failed.load()));
  return counts.failed.load() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Options options;
  tandem::Flags flags;
  flags.text("api", "API", "grpc or openai", &options.api);
  flags.text("address", "HOST:PORT", "address of that API", &options.address);
  flags.number("streams", "N", "concurrent streams (default 64)", 1, 1e5, &options.streams);
  flags.number("connections", "N", "connections, gRPC only (default 1)", 1, 1e5,
               &options.connections);
  flags.number("new-tokens", "N", "tokens per request (default 256)", 1, 1e6, &options.new_tokens);
  flags.number("warm-up", "SECONDS", "time before the measurement (default 2)", 0, 3600,
               &options.warm_up);
  flags.number("seconds", "SECONDS", "measured time (default 5)", 0.1, 3600, &options.seconds);
  const auto rest = flags.parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!rest.ok() || !rest->empty() || !options.address || !options.api ||
      (*options.api != "grpc" && *options.api != "openai")) {
    std::fprintf(stderr, "%s\n%s", rest.status().ToString().c_str(), flags.help().c_str());
    return 2;
  }
  return tandem::run(options);
}
