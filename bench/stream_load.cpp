// Many concurrent readers of tandem.v1.Generation.Generate. Writes the arrival time of every token
// to a file for bench/peers/streams.py.
//
//   build/release/bin/stream_load --server=HOST:PORT --output=FILE [--streams=1000] [--channels=4]
//                                 [--new-tokens=256] [--warm-up=5] [--seconds=20]
//
// A finished stream starts over. The first streams have different lengths, so that later starts and
// ends are spread evenly. "begin" and "end" are printed when the measured time starts and ends,
// with all streams open; the last line is "tokens N failed M".
//
// Output: records of int64 arrival (CLOCK_MONOTONIC nanoseconds), int32 token, int32 stream.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/flags.h"
#include "rpc/event_engine.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem {
namespace {

struct Options {
  std::optional<std::string> server, output;
  std::optional<double> streams, channels, new_tokens, warm_up, seconds;
};

struct Record {
  int64_t arrival;
  int32_t token;
  int32_t stream;
};
static_assert(sizeof(Record) == 16);

// State shared by the streams.
struct Crowd {
  std::atomic<bool> recording{false};
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> failed{0};
  std::mutex mutex;
  std::condition_variable fewer;
  int open = 0;  // guarded by mutex
};

// Sends one request after another. gRPC runs the reactions of a call one at a time.
class Reader final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Reader(Crowd* crowd, v1::Generation::Stub* stub, int32_t number, int new_tokens, size_t expected)
      : crowd_(crowd), stub_(stub), number_(number), new_tokens_(new_tokens) {
    records_.reserve(expected);
    request_.set_model("fake");
    request_.set_temperature(0);
    request_.set_ignore_eos(true);
    request_.set_return_tokens(true);
    request_.mutable_autoregressive();
    // Distinct prompts, so that streams share no pages.
    for (int i = 0; i < 16; ++i)
      request_.mutable_token_ids()->add_ids((number >> (i % 4 * 4)) & 15);
  }

  void start(int tokens) {
    request_.set_max_new_tokens(tokens);
    context_.emplace();
    stub_->async()->Generate(&*context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void cancel() { context_->TryCancel(); }
  const std::vector<Record>& records() const { return records_; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    if (crowd_->recording.load(std::memory_order_relaxed)) {
      for (const v1::Token& token : response_.chunk().tokens()) {
        records_.push_back({now, token.id(), number_});
      }
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!crowd_->stopping.load()) {
      if (!status.ok() && crowd_->failed.fetch_add(1) == 0) {
        std::fprintf(stderr, "stream_load: %s\n", status.error_message().c_str());
      }
      if (status.ok()) return start(new_tokens_);
    }
    // Notified under the lock, because the waiter may destroy it afterwards.
    const std::lock_guard lock(crowd_->mutex);
    --crowd_->open;
    crowd_->fewer.notify_one();
  }

  Crowd* const crowd_;
  v1::Generation::Stub* const stub_;
  const int32_t number_;
  const int new_tokens_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  std::optional<grpc::ClientContext> context_;
  std::vector<Record> records_;
};

void say(const char* what) {
  std::puts(what);
  std::fflush(stdout);
}

int run(const Options& options) {
  const int streams = static_cast<int>(options.streams.value_or(1000));
  const int channels = static_cast<int>(options.channels.value_or(4));
  const int new_tokens = static_cast<int>(options.new_tokens.value_or(256));
  const auto sleep = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  std::vector<std::unique_ptr<v1::Generation::Stub>> stubs;
  for (int i = 0; i < channels; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection per channel
    stubs.push_back(v1::Generation::NewStub(
        grpc::CreateCustomChannel(*options.server, grpc::InsecureChannelCredentials(), arguments)));
  }
  Crowd crowd;
  crowd.open = streams;
  // Sized for 64 tokens per second, so that nothing grows while measuring.
  const auto expected = static_cast<size_t>(options.seconds.value_or(20) * 64);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < streams; ++i) {
    readers.push_back(std::make_unique<Reader>(
        &crowd, stubs[static_cast<size_t>(i % channels)].get(), i, new_tokens, expected));
    readers.back()->start(1 + static_cast<int>(int64_t{new_tokens} * i / streams));
  }
  sleep(options.warm_up.value_or(5));
  crowd.recording.store(true);
  say("begin");
  sleep(options.seconds.value_or(20));
  crowd.recording.store(false);
  say("end");
  sleep(0.5);  // time for the caller to read the server's metrics with all streams open
  crowd.stopping.store(true);
  for (const auto& reader : readers) reader->cancel();
  {
    std::unique_lock lock(crowd.mutex);
    crowd.fewer.wait(lock, [&] { return crowd.open == 0; });
  }
  std::ofstream out(*options.output, std::ios::binary);
  size_t tokens = 0;
  for (const auto& reader : readers) {
    const std::vector<Record>& records = reader->records();
    out.write(reinterpret_cast<const char*>(records.data()),
              static_cast<std::streamsize>(records.size() * sizeof(Record)));
    tokens += records.size();
  }
  std::printf("tokens %zu failed %lld\n", tokens, static_cast<long long>(crowd.failed.load()));
  return crowd.failed.load() == 0 && out.good() ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Options options;
  tandem::Flags flags;
  flags.text("server", "HOST:PORT", "server address", &options.server);
  flags.text("output", "FILE", "file for the records", &options.output);
  flags.number("streams", "N", "concurrent streams (default 1000)", 1, 1e6, &options.streams);
  flags.number("channels", "N", "connections (default 4)", 1, 1000, &options.channels);
  flags.number("new-tokens", "N", "tokens per request (default 256)", 1, 1e6, &options.new_tokens);
  flags.number("warm-up", "SECONDS", "time before the measurement (default 5)", 0, 3600,
               &options.warm_up);
  flags.number("seconds", "SECONDS", "measured time (default 20)", 0.1, 3600, &options.seconds);
  const auto rest = flags.parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!rest.ok() || !rest->empty() || !options.server || !options.output) {
    std::fprintf(stderr, "%s\n%s", rest.status().ToString().c_str(), flags.help().c_str());
    return 2;
  }
  tandem::retain_event_engine();
  return tandem::run(options);
}
