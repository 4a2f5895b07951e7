#include "server/call_gate.h"

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/raw_service.h"
#include "tests/server/edge/sockets.h"
#include "tests/server/server_harness.h"

namespace tandem {
namespace {

using test::connect_to;
using test::put;

constexpr char kPath[] = "/tandem.test.Parking/Park";

// Takes calls, and says neither to the gate nor to anybody else that it has them.
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
  void hear(CallGate* gate) {
    const std::lock_guard lock(mutex_);
    for (auto* context : contexts_) gate->heard(context);
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

struct Fixture {
  explicit Fixture(UnheardCalls::Bounds bounds) : gate(bounds, &clock) {
    gate.serve(kPath);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", plain_credentials(&gate), &port);
    builder.RegisterService(&parking);
    server = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
  }
  ~Fixture() {
    parking.end();
    server->Shutdown(std::chrono::system_clock::now());
  }

  VirtualClock clock;
  CallGate gate;
  ParkingService parking;
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

// `count` calls of headers alone, RFC 7541 without tables: :method POST, :scheme http, :path, ...
std::string calls(const std::string& path, uint32_t first, uint32_t count) {
  const std::string headers = "\x83\x86\x04" + text(path) + "\x01" + text("localhost") +
                              "\x0f\x10" + text("application/grpc") + number(0, 1) + text("te") +
                              text("trailers");
  std::string out;
  for (uint32_t i = 0; i < count; ++i) out += frame(1, 4, 2 * (first + i) + 1, headers);
  return out;
}

// The race of threads that the gate is for, with the slowest thread that there can be: no service
// ever says that it has a call, and nothing is acknowledged.
TEST(CallGate, BoundsCallsThatNoServiceHasHeardOf) {
  constexpr uint32_t kBound = 20, kCalls = 3000;
  Fixture f({/*total=*/1000, kBound});
  const Fd client = connect_to(f.address);
  ASSERT_TRUE(put(client, hello() + calls(kPath, 0, kCalls)));
  ASSERT_TRUE(eventually([&] { return f.gate.calls().refused() == kCalls - kBound; }))
      << f.gate.calls().refused();
  EXPECT_EQ(f.gate.calls().unheard(), kBound);
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == kBound; }));

  // Another connection has places of its own, and so has this one when its calls are heard of.
  const Fd other = connect_to(f.address);
  ASSERT_TRUE(put(other, hello() + calls(kPath, 0, 1)));
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == kBound + 1; }));
  f.parking.hear(&f.gate);
  EXPECT_EQ(f.gate.calls().unheard(), 0);
  ASSERT_TRUE(put(client, calls(kPath, kCalls, 1)));
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == kBound + 2; }));
  EXPECT_EQ(f.gate.calls().refused(), kCalls - kBound);
}

TEST(CallGate, MethodsThatNobodyServesTakeNoPlace) {
  Fixture f({/*total=*/1, /*per_connection=*/1});
  const Fd client = connect_to(f.address);
  ASSERT_TRUE(
      put(client, hello() + calls("/tandem.test.Parking/Other", 0, 100) + calls(kPath, 100, 1)));
  ASSERT_TRUE(eventually([&] { return f.parking.parked() == 1; }));
  EXPECT_EQ(f.gate.calls().unheard(), 1);
  EXPECT_EQ(f.gate.calls().refused(), 0);
}

}  // namespace
}  // namespace tandem
