#include "server/observe/monitor.h"

#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/health/health_service.h"
#include "tests/server/server_harness.h"

namespace tandem {
namespace {

using testing::AnyOf;
using testing::StartsWith;

// No file is left in this process while it lives.
class NoFiles {
 public:
  NoFiles() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    Fd highest(dup(STDOUT_FILENO));
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(highest.get()) + 1;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    while (highest.valid()) {
      taken_.push_back(std::move(highest));
      highest = Fd(dup(STDOUT_FILENO));
    }
  }
  ~NoFiles() {
    taken_.clear();
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
  }

 private:
  rlimit before_ = {};
  std::vector<Fd> taken_;
};

// Waits for the first problem and returns its description.
std::string first_trouble(ServerState* state, grpc::Server* server, const Acceptor& acceptor) {
  state->stuck = false;
  std::promise<void> found;
  std::once_flag once;
  Monitor monitor(state, server, &acceptor, /*openai=*/nullptr,
                  [&] { std::call_once(once, [&] { found.set_value(); }); });
  found.get_future().wait();
  EXPECT_TRUE(state->stuck.load());
  return monitor.trouble();
}

// Without a file for its connection to the server, it continues and checks the rest: here an
// acceptor that was not started.
TEST(Monitor, OutlivesALackOfFiles) {
  quiet_log();
  ServerState state{ServerConfig{}};
  HealthService health([] { return std::map<std::string, bool>{{"", true}}; }, &state.health_calls,
                       &state.timeouts);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials());
  builder.RegisterService(&health);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const Acceptor idle(*listen_on("listen", "127.0.0.1:0"), {1, 1}, std::chrono::seconds(20));
  constexpr auto kIdle = "no connection has been accepted";
  // Once with files, too: UBSan meets each class for the first time through a pipe.
  EXPECT_THAT(first_trouble(&state, server.get(), idle), StartsWith(kIdle));
  std::string trouble;
  {
    const NoFiles none;
    trouble = first_trouble(&state, server.get(), idle);
  }
  // The second where the first look came late: a probe without files hears nothing, either.
  EXPECT_THAT(trouble, AnyOf(StartsWith(kIdle), StartsWith("the gRPC server has not responded")));
  server->Shutdown();
}

}  // namespace
}  // namespace tandem
