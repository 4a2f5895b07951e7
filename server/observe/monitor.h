// Asks once a second whether the server gets on, and says so: in ServerState::stuck, in the log,
// and to whoever watches health.
//
// It asks its own gRPC server for its health over a connection of its own, which needs neither the
// port nor TLS; the acceptor whether its thread still comes round; the OpenAI door whether its
// threads do; the engine how long its loop and its devices have been at what they do.
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
  // `changed` is called, on the monitor's thread, when `state.stuck` has changed. All outlive it,
  // or at least its stop(). `openai` may be null.
  Monitor(ServerState* state, grpc::Server* server, const Acceptor* acceptor, OpenAiApi* openai,
          std::function<void()> changed);
  ~Monitor();
  // Before the server shuts down. Does nothing the second time.
  void stop();

  // What does not get on, for people; empty: everything does.
  std::string trouble() const;

 private:
  class Probe;
  void run();
  std::string look();

  ServerState& state_;
  const Acceptor& acceptor_;
  OpenAiApi* const openai_;
  const std::function<void()> changed_;
  std::unique_ptr<Probe> probe_;

  mutable Mutex mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string trouble_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses the rest
};

}  // namespace tandem
