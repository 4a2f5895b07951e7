// tandem-server: reads the command line, loads the models, serves until a signal, drains.
//
// Exit status: 0 after a drain, 1 when it cannot start, 2 for a wrong command line.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/version.h"
#include "engine/host/engine.h"
#include "server/log.h"
#include "server/options.h"
#include "server/server.h"

namespace tandem {
namespace {

// Turns signals into values, on a thread of its own. Made before any other thread, which then
// inherits the mask.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
    std::thread([this] { run(); }).detach();
  }

  // From here on the first signal ends wait(); before, it ends the process at once.
  void arm() { armed_.store(true); }
  void wait() { first_.get_future().wait(); }

 private:
  [[noreturn]] void run() {
    bool waiting = true;
    for (;;) {
      int number = 0;
      sigwait(&set_, &number);
      log_info("signal", {{"number", number}});
      if (!armed_.load()) _exit(0);  // nothing is served yet
      if (!waiting) _exit(1);        // asked twice: no more grace
      waiting = false;
      first_.set_value();
    }
  }

  sigset_t set_;
  std::atomic<bool> armed_{false};
  std::promise<void> first_;
};

// Written beside and renamed, so that a reader never sees half of it.
bool write_port_file(const std::string& path, const Server& server) {
  const std::string beside = path + ".tmp";
  {
    std::ofstream out(beside, std::ios::trunc);
    out << "grpc=" << server.grpc_address() << "\n";
    if (!server.http_address().empty()) out << "http=" << server.http_address() << "\n";
    if (!out.flush()) return false;
  }
  return std::rename(beside.c_str(), path.c_str()) == 0;
}

int fail(const absl::Status& status) {
  std::fprintf(stderr, "tandem-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

int run(const Options& options) {
  static Signals signals;  // its thread runs until the process ends
  const auto configuration = configure(options);
  set_up_log(configuration.ok() ? configuration->server.log_level : "info");
  if (!configuration.ok()) return fail(configuration.status());

  auto server = Server::start(configuration->server);
  if (!server.ok()) return fail(server.status());
  log_info("listening", {{"version", kVersion},
                         {"grpc", (*server)->grpc_address()},
                         {"http", (*server)->http_address()}});

  auto engine = Engine::create(configuration->engine, [](absl::string_view line) {
    log_info("loading", {{"progress", std::string(line)}});
  });
  if (!engine.ok()) return fail(engine.status());
  (*server)->attach(engine->get());
  signals.arm();
  if (options.port_file.has_value() && !write_port_file(*options.port_file, **server)) {
    server->reset();  // before the engine, which its calls use
    return fail(absl::UnavailableError("--port-file: cannot write " + *options.port_file));
  }
  log_info("ready", {{"grpc", (*server)->grpc_address()}, {"http", (*server)->http_address()}});

  signals.wait();
  (*server)->drain();
  server->reset();
  engine->reset();
  log_info("stopped");
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto options = tandem::parse_options(args);
  if (!options.ok()) {
    std::fprintf(stderr, "tandem-server: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  if (options->help) {
    std::fputs(tandem::options_help().c_str(), stdout);
    return 0;
  }
  if (options->version) {
    std::printf("tandem-server %s%s%s%s%s\n", tandem::kVersion, *tandem::kCommit ? " " : "",
                tandem::kCommit, *tandem::kTorchVersion ? ", torch " : "", tandem::kTorchVersion);
    return 0;
  }
  return tandem::run(*options);
}
