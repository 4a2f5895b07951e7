#include "server/grpc/call_limiter.h"

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/grpc/raw_service.h"
#include "tests/server/edge/sockets.h"
#include "tests/server/server_harness.h"

namespace tandem {
namespace {

using test::connect_to;
using test::put;

constexpr char kPath[] = "/tandem.test.Parking/Park";

// Takes calls without reporting them to the limiter.
class ParkingService final : public RawService {
 public:
  struct Call final : RawReactor {
    void OnDone() override { delete this; }
  };

  ParkingService() {
    add_method(kPath, [this](grpc::CallbackServerContext* context) {
      auto* const call = new Call;
      const std::lock_guard lock(mutex_);
      if (ended_) {
        call->Finish(grpc::Status::OK);
        return call;
      }
      calls_.push_back(call);
      contexts_.push_back(context);
      return call;
    });
  }
  size_t parked() {
    const std::lock_guard lock(mutex_);
    return calls_.size();
  }
  void hear(CallLimiter* limiter) {
    const std::lock_guard lock(mutex_);
    for (auto* context : contexts_) limiter->received(context);
    contexts_.clear();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    for (Call* call : calls_) call->Finish(grpc::Status::OK);
    calls_.clear();
    contexts_.clear();
  }

 private:
  std::mutex mutex_;
  bool ended_ = false;
  std::vector<Call*> calls_;
  std::vector<grpc::CallbackServerContext*> contexts_;
};

constexpr char kAwaited[] = "/tandem.test.Ending/Awaited";
constexpr char kCalledBack[] = "/tandem.test.Ending/CalledBack";

// Ends and counts each call on arrival, without reporting it to the limiter.
class EndingService final : public RawService {
 public:
  EndingService() {
    awaited_ = add_async_method(kAwaited);
    add_method(kCalledBack, [this](grpc::CallbackServerContext*) {
      auto* const call = new CalledBack;
      call->Finish(grpc::Status::OK);
      come.fetch_add(1);
      return call;
    });
  }

  // Takes `calls` calls of the awaited method; `again`: and one more for each call that arrives.
  void take(CallThread& thread, int calls, bool again) {
    for (int i = 0; i < calls; ++i) new Call(this, &thread, again);
  }

  std::atomic<int> come{0};

 private:
  struct CalledBack final : RawReactor {
    void OnDone() override { delete this; }
  };
  // Owned by itself until it has ended.
  struct Call {
    Call(EndingService* s, CallThread* t, bool another) : service(*s), thread(*t), again(another) {
      thread.enter();
      service.awaited_.await(&arrival, &context, &stream, thread, thread);
    }
    void arrived(bool ok) {
      if (!ok) return ended();
      if (again) new Call(&service, &thread, again);
      stream.Finish(grpc::Status::OK, &finished);
      service.come.fetch_add(1);
    }
    void ended() {
      CallThread& last = thread;
      delete this;
      last.leave();
    }
    EndingService& service;
    CallThread& thread;
    const bool again;
    grpc::ServerContext context;
    Stream stream{&context};
    Arrival arrival{{[](void* call, bool ok) { static_cast<Call*>(call)->arrived(ok); }, this}};
    CallThread::Completion finished{[](void* call, bool) { static_cast<Call*>(call)->ended(); },
                                    this};
  };

  AsyncMethod awaited_;
};

struct Fixture {
  explicit Fixture(PendingCalls::Bounds bounds) : limiter(bounds, &clock) {
    limiter.add_method(kPath);
    ending.set_limiter(&limiter);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", plain_credentials(&limiter), &port);
    builder.RegisterService(&parking);
    builder.RegisterService(&ending);
    thread = std::make_unique<CallThread>(builder.AddCompletionQueue());
    server = builder.BuildAndStart();
    thread->start();
    address = absl::StrCat("127.0.0.1:", port);
  }
  ~Fixture() {
    parking.end();
    server->Shutdown(std::chrono::system_clock::now());
    thread->stop();
  }

  VirtualClock clock;  // moves only when a test advances it
  CallLimiter limiter;
  ParkingService parking;
  EndingService ending;
  std::unique_ptr<CallThread> thread;
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

std::string number(uint32_t value, int bytes) {
  std::string out;
  while (bytes-- > 0) out.push_back(static_cast<char>(value >> (8 * bytes)));
  return out;
}

std::string frame(int type, int flags, uint32_t stream, const std::string& payload) {
  return number(static_cast<uint32_t>(payload.size()), 3) + number(static_cast<uint32_t>(type), 1) +
         number(static_cast<uint32_t>(flags), 1) + number(stream, 4) + payload;
}

std::string text(const std::string& value) {
  return number(static_cast<uint32_t>(value.size()), 1) + value;
}

// A connection whose client sends its settings and acknowledges none.
std::string hello() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, ""); }

// A call of headers alone, RFC 7541 without tables: :method POST, :scheme http, :path, ...
// `timeout` as grpc-timeout has it; empty: none.
std::string call(const std::string& path, uint32_t which, const std::string& timeout = "") {
  std::string headers = "\x83\x86\x04" + text(path) + "\x01" + text("localhost") + "\x0f\x10" +
                        text("application/grpc") + number(0, 1) + text("te") + text("trailers");
  if (!timeout.empty()) headers += number(0, 1) + text("grpc-timeout") + text(timeout);
  return frame(1, 4, 2 * which + 1, headers);
}

// RST_STREAM: CANCEL.
std::string reset(uint32_t which) { return frame(3, 0, 2 * which + 1, number(8, 4)); }

std::string calls(const std::string& path, uint32_t first, uint32_t count) {
  std::string out;
  for (uint32_t i = 0; i < count; ++i) out += call(path, first + i);
  return out;
}

// The race of threads that the limiter is for, with the slowest thread that there can be: no
// service ever says that it has a call, and nothing is acknowledged.
TEST(CallLimiter, BoundsCallsThatReachNoService) {
  constexpr uint32_t kBound = 20, kCalls = 3000;
  Fixture f({/*total=*/1000, kBound});
  const Fd client = connect_to(f.address);
  ASSERT_TRUE(put(client, hello() + calls(kPath, 0, kCalls)));
  ASSERT_TRUE(eventually([&] { return f.limiter.calls().refused() == kCalls - kBound; }))
      << f.limiter.calls().refused();
  EXPECT_EQ(f.limiter.calls().pending(), kBound);
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == kBound; }));

  // Another connection has places of its own, and so has this one when its calls are heard of.
  const Fd other = connect_to(f.address);
  ASSERT_TRUE(put(other, hello() + calls(kPath, 0, 1)));
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == kBound + 1; }));
  f.parking.hear(&f.limiter);
  EXPECT_EQ(f.limiter.calls().pending(), 0);
  ASSERT_TRUE(put(client, calls(kPath, kCalls, 1)));
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == kBound + 2; }));
  EXPECT_EQ(f.limiter.calls().refused(), kCalls - kBound);
}

// Nor are there more of many connections together than the ceiling, whatever each has of its own.
TEST(CallLimiter, ManyConnectionsMeetTheCeiling) {
  constexpr uint32_t kCalls = 30;
  Fixture f({/*total=*/20, /*per_connection=*/100, /*reserve_threshold=*/8, /*reserve=*/40});
  const auto& limiter = f.limiter.calls();
  std::vector<Fd> clients;
  // 20, five times its own 8, and none for two.
  for (const int64_t pending : {20, 28, 36, 44, 52, 60, 60, 60}) {
    clients.push_back(connect_to(f.address));
    ASSERT_TRUE(put(clients.back(), hello() + calls(kPath, 0, kCalls)));
    const auto sent = static_cast<int64_t>(clients.size() * kCalls);
    ASSERT_TRUE(eventually([&] { return limiter.pending() + limiter.refused() == sent; }));
    EXPECT_EQ(limiter.pending(), pending);
  }
  EXPECT_EQ(limiter.pending(), limiter.bounds().max_total());
}

// A service that is ready for calls receives every admitted call, even if it ends at once. So no
// place is lost, not even for a time: the clock does not move.
TEST(CallLimiter, CallsThatEndAtOnceKeepNoPlace) {
  constexpr uint32_t kCalls = 300;
  for (const std::string path : {kAwaited, kCalledBack}) {
    Fixture f({/*total=*/1000, /*per_connection=*/1000});
    f.ending.take(*f.thread, 1000, /*again=*/true);
    const Fd client = connect_to(f.address);
    std::string cancelled, expired;
    for (uint32_t i = 0; i < kCalls; ++i) cancelled += call(path, i) + reset(i);
    for (uint32_t i = 0; i < kCalls; ++i) expired += call(path, kCalls + 1 + i, "1n");
    size_t parked = 0;
    uint32_t last = kCalls;
    for (const std::string& sent : {hello() + cancelled, expired}) {
      ASSERT_TRUE(put(client, sent + call(kPath, last)));
      // The last one is admitted after all others.
      ASSERT_TRUE(eventually([&] { return f.parking.parked() == parked + 1; }));
      f.parking.hear(&f.limiter);
      // Whose deadline comes between the limiter and the service is lost; few can.
      ASSERT_TRUE(eventually([&] { return f.limiter.calls().pending() <= kCalls / 10; }))
          << path << ": " << f.limiter.calls().pending();
      ++parked;
      last = 2 * kCalls + 1;
    }
    // Each was made: a service had it, or its place is still taken.
    EXPECT_TRUE(eventually([&] {
      return f.ending.come.load() + f.limiter.calls().pending() == 2 * kCalls;
    })) << path
        << ": " << f.ending.come.load();
    EXPECT_EQ(f.limiter.calls().expired(), 0) << path;
    EXPECT_EQ(f.limiter.calls().refused(), 0) << path;
    f.clock.advance(2 * PendingCalls::kExpiry);
    EXPECT_EQ(f.limiter.calls().pending(), 0) << path;
    RecordProperty(path, f.ending.come.load());
  }
}

// If a service is not ready, gRPC keeps calls in a queue. Calls that end there never reach the
// service. Their places are freed by time.
TEST(CallLimiter, CallsThatEndInGrpcsQueueGiveTheirPlacesBackInTime) {
  constexpr int kCalls = 50;
  for (const bool by_deadline : {false, true}) {
    Fixture f({/*total=*/kCalls, /*per_connection=*/kCalls});
    const Fd client = connect_to(f.address);
    std::string sent = hello();
    for (uint32_t i = 0; i < kCalls; ++i) sent += call(kAwaited, i, by_deadline ? "1m" : "");
    ASSERT_TRUE(put(client, sent));
    ASSERT_TRUE(eventually([&] { return f.limiter.calls().pending() == kCalls; }));
    std::string more;
    if (!by_deadline) {
      for (uint32_t i = 0; i < kCalls; ++i) more += reset(i);
    }
    ASSERT_TRUE(put(client, more + call(kAwaited, kCalls)));
    ASSERT_TRUE(eventually([&] { return f.limiter.calls().refused() == 1; })) << "no place is left";

    f.clock.advance(2 * PendingCalls::kExpiry);
    EXPECT_EQ(f.limiter.calls().pending(), 0);
    EXPECT_EQ(f.limiter.calls().expired(), kCalls);
    ASSERT_TRUE(put(client, call(kAwaited, kCalls + 1)));
    ASSERT_TRUE(eventually([&] { return f.limiter.calls().pending() == 1; }));
    f.ending.take(*f.thread, 1, /*again=*/true);
    ASSERT_TRUE(eventually([&] { return f.limiter.calls().pending() == 0; }));
    EXPECT_TRUE(eventually([&] { return f.ending.come.load() >= 1; }));
  }
}

// A service can only await calls through AsyncMethod, which notifies the limiter.
class BypassingService : public RawService {
 public:
  template <class Self>
  static constexpr bool can_bypass_the_limiter() {
    return requires(Self self, grpc::ServerContext* context, Stream* stream,
                    grpc::ServerCompletionQueue* queue) {
      self.RequestAsyncBidiStreaming(0, context, stream, queue, queue, nullptr);
    } || requires(Self self, grpc::internal::RpcServiceMethod* method) { self.AddMethod(method); };
  }
  static constexpr bool can_await() {
    return requires(AsyncMethod method, Arrival* arrival, grpc::ServerContext* context,
                    Stream* stream, const CallThread& thread) {
      method.await(arrival, context, stream, thread, thread);
    };
  }
};
static_assert(!BypassingService::can_bypass_the_limiter<BypassingService>() &&
              BypassingService::can_await());

TEST(CallLimiter, MethodsWithoutAServiceTakeNoPlace) {
  Fixture f({/*total=*/1, /*per_connection=*/1});
  const Fd client = connect_to(f.address);
  ASSERT_TRUE(
      put(client, hello() + calls("/tandem.test.Parking/Other", 0, 100) + calls(kPath, 100, 1)));
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == 1; }));
  EXPECT_EQ(f.limiter.calls().pending(), 1);
  EXPECT_EQ(f.limiter.calls().refused(), 0);
}

}  // namespace
}  // namespace tandem
