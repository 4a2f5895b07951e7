// A watchdog: checks once a second whether the server makes progress. Reports to
// ServerState::stuck, to the log and to health watches.
//
// It calls the gRPC health service over a connection of its own, which needs neither the port nor
// TLS. It checks the threads of the acceptor and of the OpenAI-compatible API, and how long the
// engine's loop and devices have been busy with one step.
#pragma once

#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "server/edge/acceptor.h"
#include "server/http/openai_api.h"
#include "server/server_state.h"

namespace tandem {

class Monitor {
 public:
  // `changed` is called on the monitor's thread when `state.stuck` has changed. All arguments
  // outlive this, or at least stop(). `openai` may be null.
  Monitor(ServerState* state, grpc::Server* server, const Acceptor* acceptor, OpenAiApi* openai,
          std::function<void()> changed);
  ~Monitor();
  // Call before the server shuts down. Does nothing the second time.
  void stop();

  // Describes the component that makes no progress; empty: all do.
  std::string trouble() const;

 private:
  class Probe;
  void run();
  std::string find_trouble();

  ServerState& state_;
  const Acceptor& acceptor_;
  OpenAiApi* const openai_;
  const std::function<void()> changed_;
  std::unique_ptr<Probe> probe_;

  mutable Mutex mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string trouble_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses the other members
};

}  // namespace tandem
