// tandem-server: parses the command line, loads the models, serves until a signal, drains.
//
// Exit status: 0 after a drain or a successful --check, 1 if the server cannot start, gets a second
// signal, or cannot allocate memory or start a thread, 2 for a wrong command line, 3 if the drain
// exceeds its time.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/mutex.h"
#include "engine/base/thread.h"
#include "engine/base/version.h"
#include "engine/host/engine.h"
#include "engine/host/models/models.h"
#include "server/edge/memory_limit.h"
#include "server/hub_models.h"
#include "server/observe/kv_events.h"
#include "server/observe/log.h"
#include "server/observe/process_stats.h"
#include "server/options.h"
#include "server/prefix_saver.h"
#include "server/server.h"

namespace tandem {
namespace {

constexpr int kFailed = 1;  // cannot start, second signal, out of memory or threads
constexpr int kWrongCommandLine = 2;
constexpr int kDrainCutOff = 3;

// Time after the grace period for the last messages, before the process ends.
constexpr auto kAfterGrace = std::chrono::seconds(5);

// The process cannot continue without memory or threads, and gRPC and Abseil do not try. It ends at
// once, with a message and without a core file. Allocates nothing.
[[noreturn]] void end_process(const char* why) {
  for (const char* const part : {"tandem-server: ", why, "\n"}) {
    (void)!write(STDERR_FILENO, part, std::strlen(part));
  }
  _exit(kFailed);
}

// For exceptions that no code catches. Others than the two are bugs, and leave a core file.
[[noreturn]] void on_terminate() {
  try {
    if (std::current_exception() != nullptr) throw;
  } catch (const std::bad_alloc&) {
    end_process("out of memory");
  } catch (const std::system_error& error) {
    end_process(error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tandem-server: unexpected exception: %s\n", error.what());
  } catch (...) {
  }
  std::abort();
}

// Runs before the constructors of static objects, which allocate memory before main().
[[gnu::constructor(101)]] void handle_terminate() { std::set_terminate(&on_terminate); }

// Converts signals to values, on a thread that never blocks elsewhere. Created before any other
// thread, so that all threads inherit the signal mask.
class Signals {
 public:
  enum class Request { kReload, kDrain };

  Signals() {
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set_, number);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
    start_thread("signals", [this] { run(); }).detach();
  }

  // From here on the first SIGTERM or SIGINT ends wait(). Before, it ends the process. `limit`
  // after it the process ends, even if a device, a library or a thread hangs.
  void arm(Duration limit) {
    const MutexLock lock(&mutex_);
    limit_ = limit;
  }
  Request wait() {
    MutexLock lock(&mutex_);
    changed_.wait(lock,
                  [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return drain_ || reload_; });
    if (drain_) return Request::kDrain;
    reload_ = false;
    return Request::kReload;
  }

 private:
  [[noreturn]] void run() {
    std::optional<TimePoint> cut_off;
    for (;;) {
      const int number = next(cut_off);
      {
        const MutexLock lock(&mutex_);
        if (number == SIGHUP) {
          reload_ = true;
        } else {
          if (!limit_.has_value()) _exit(0);  // not serving yet
          if (drain_) _exit(kFailed);         // second signal: no more grace
          drain_ = true;
          cut_off = std::chrono::steady_clock::now() + *limit_;
        }
      }
      changed_.notify_all();
      log_info("signal", {{"number", number}});
    }
  }

  // The next signal.
  int next(const std::optional<TimePoint>& cut_off) const {
    for (;;) {
      int number = 0;
      if (!cut_off.has_value()) {
        if (sigwait(&set_, &number) == 0) return number;
        continue;
      }
      const Duration left = *cut_off - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) cut_off_now();
      const auto whole = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec wait = {whole.count(), std::chrono::nanoseconds(left - whole).count()};
      number = sigtimedwait(&set_, nullptr, &wait);
      if (number > 0) return number;
    }
  }

  [[noreturn]] void cut_off_now() const {
    log_error("cut_off", {{"after_seconds", seconds(limit())}});
    flush_log(std::chrono::milliseconds(100));
    _exit(kDrainCutOff);
  }

  Duration limit() const {
    const MutexLock lock(&mutex_);
    return *limit_;
  }

  sigset_t set_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<Duration> limit_ ABSL_GUARDED_BY(mutex_);  // null before arm()
  bool reload_ ABSL_GUARDED_BY(mutex_) = false;
  bool drain_ ABSL_GUARDED_BY(mutex_) = false;
};

// Connections use file descriptors. The usual soft limit of 1024 exists for select().
void raise_file_limit() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

// gRPC 1.51 honours the limit on read sizes (server.cpp, kReadBytes) only without this experiment.
// Called before any other thread exists. Keeps a value from the environment.
void set_up_grpc() { setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", /*replace=*/0); }

// Logs what the process may need: what it has now, and what clients may make it hold.
void report_memory(const ServerConfig& config) {
  const ProcessStats process = read_process();
  if (!process.resident_bytes.has_value()) {
    return log_warn("memory", {{"error", process.error.message(), LogField::kMaxMessage}});
  }
  const int64_t loaded = *process.resident_bytes;
  const int64_t available = available_memory();
  const LogFields fields = {{"loaded_bytes", loaded},
                            {"memory_bytes", config.memory_bytes},
                            {"available_bytes", available}};
  if (available > 0 && loaded + config.memory_bytes > available) {
    LogFields warning = fields;
    warning.emplace_back("advice", "lower server.memory_bytes, or give the process more memory");
    return log_warn("memory", warning);
  }
  log_info("memory", fields);
}

// Writes a temporary file and renames it, so that readers see a complete file. An existing
// temporary file is replaced; links are not followed.
bool write_port_file(const std::string& path, const Server& server) {
  const std::string temporary = path + ".tmp";
  std::string text = absl::StrCat("grpc=", server.grpc_address(), "\n");
  if (!server.http_address().empty()) {
    absl::StrAppend(&text, "http=", server.http_address(), "\n");
  }
  if (!server.openai_address().empty()) {
    absl::StrAppend(&text, "openai=", server.openai_address(), "\n");
  }
  unlink(temporary.c_str());
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (close(fd) != 0 || !written) return false;
  return std::rename(temporary.c_str(), path.c_str()) == 0;
}

// Sends SIGTERM to this process when standard input ends: the process at its other end has closed
// it, or has ended.
void stop_with_stdin() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for other threads
  start_thread("standard input", [] {
    char ignored[256];
    ssize_t n = 0;
    do {
      n = read(STDIN_FILENO, ignored, sizeof(ignored));
    } while (n > 0 || (n < 0 && errno == EINTR));
    kill(getpid(), SIGTERM);
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void save_prefixes(Engine* engine) {
  const absl::StatusOr<SavedPrefixes> saved = engine->save_prefixes();
  if (!saved.ok()) {
    log_warn("prefix_store", {{"error", saved.status().message(), LogField::kMaxMessage}});
  } else if (saved->files > 0) {
    log_info("prefix_store",
             {{"saved_files", saved->files}, {"pages", saved->pages}, {"bytes", saved->bytes}});
  }
}

// Null: there are none.
absl::StatusOr<std::unique_ptr<KvEvents>> start_kv_events(const Configuration& configuration) {
  const KvEventsConfig& config = configuration.server.kv_events;
  if (config.endpoint.empty()) return nullptr;
  KvEvents::Options options{.endpoint = config.endpoint, .topic = config.topic};
  for (const DeploymentConfig& d : configuration.engine.deployments) {
    if (!d.prefix_cache_per_client) options.deployments[d.large].push_back(d.name);
  }
  return KvEvents::start(std::move(options));
}

// Fetches the models of a hub that flags name.
absl::Status fetch_models(Options* options) {
  options->fetch = [offline = options->check](const std::vector<std::string>& names) {
    return run_tandem_pull(names, offline);
  };
  auto note = resolve_hub_models(options->fetch, &options->models);
  if (!note.ok()) return note.status();
  options->draft_note = *std::move(note);
  return absl::OkStatus();
}

int fail(const absl::Status& status) {
  std::fprintf(stderr, "tandem-server: %s\n", std::string(status.message()).c_str());
  return kFailed;
}

// Reports the errors that run() would find before it reads weights.
int check(const Options& options) {
  const auto configuration = configure(options);
  if (!configuration.ok()) return fail(configuration.status());
  if (const auto status = Server::check(configuration->server); !status.ok()) return fail(status);
  if (const auto status = check_files(configuration->engine); !status.ok()) return fail(status);
  std::printf("no errors; models: %zu, deployments: %zu (weights were not read)\n",
              configuration->engine.models.size(), configuration->engine.deployments.size());
  return 0;
}

int run(const Options& options) {
  set_up_grpc();
  static Signals signals;  // its thread runs until the process ends
  const auto configuration = configure(options);
  const bool json = configuration.ok() && configuration->server.log_format == "json";
  set_up_log(configuration.ok() ? configuration->server.log_level : "info",
             json ? LogFormat::kJson : LogFormat::kText);
  if (!configuration.ok()) return fail(configuration.status());

  if (!options.draft_note.empty())
    log_info("draft_model", {{"note", options.draft_note, LogField::kMaxMessage}});
  raise_file_limit();
  auto kv_events = start_kv_events(*configuration);  // outlives the engine
  if (!kv_events.ok()) return fail(kv_events.status());
  std::unique_ptr<Engine> engine;  // outlives the server on every path
  auto server = Server::start(configuration->server);
  if (!server.ok()) return fail(server.status());
  LogFields listening = {{"version", kVersion},
                         {"grpc", (*server)->grpc_address()},
                         {"http", (*server)->http_address()}};
  if (!(*server)->openai_address().empty()) {
    listening.emplace_back("openai", (*server)->openai_address());
  }
  log_info("listening", listening);

  auto created = Engine::create(
      configuration->engine,
      [](absl::string_view line) { log_info("loading", {{"progress", std::string(line)}}); },
      (*server)->memory(), kv_events->get());
  if (!created.ok()) return fail(created.status());
  engine = *std::move(created);
  if (const absl::Status& read = engine->statistics_read(); !read.ok()) {
    log_warn("statistics", {{"error", read.message(), LogField::kMaxMessage},
                            {"advice", "the file is replaced when the server stops"}});
  }
  if (const absl::Status& read = engine->prefixes_read(); !read.ok()) {
    log_warn("prefix_store", {{"error", read.message(), LogField::kMaxMessage},
                              {"advice", "the file is replaced when prefixes are saved"}});
  }
  (*server)->observe(kv_events->get());
  (*server)->attach(engine.get());
  signals.arm(configuration->server.grace + kAfterGrace);
  if (options.port_file.has_value() && !write_port_file(*options.port_file, **server)) {
    server->reset();  // before the engine, which its calls use
    return fail(absl::UnavailableError("--port-file: cannot write " + *options.port_file));
  }
  report_memory(configuration->server);
  log_info("ready", {{"grpc", (*server)->grpc_address()}, {"http", (*server)->http_address()}});

  std::optional<PrefixSaver> saver;
  if (!configuration->engine.prefix_store.empty()) {
    saver.emplace([&engine] { save_prefixes(engine.get()); },
                  configuration->server.prefix_store_interval);
  }
  while (signals.wait() == Signals::Request::kReload) (*server)->reload();
  if (saver.has_value()) saver->finish();  // while running streams finish
  (*server)->drain();
  server->reset();
  saver.reset();
  if (const absl::Status saved = engine->save_statistics(); !saved.ok()) {
    log_warn("statistics", {{"error", saved.message(), LogField::kMaxMessage}});
  }
  engine.reset();
  kv_events->reset();
  log_info("stopped");
  flush_log(std::chrono::seconds(1));
  // Not a return: destroying LibTorch's static tables takes longer than the whole shutdown, and
  // detached threads still run.
  _exit(0);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  auto options = tandem::parse_options(args);
  if (!options.ok()) {
    std::fprintf(stderr, "tandem-server: %s\n", std::string(options.status().message()).c_str());
    return tandem::kWrongCommandLine;
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
  if (options->stop_with_stdin) tandem::stop_with_stdin();
  if (const auto status = tandem::fetch_models(&*options); !status.ok())
    return tandem::fail(status);
  if (const char* target = std::getenv("TANDEM_CPU_TARGET")) options->cpu_target = target;
  return options->check ? tandem::check(*options) : tandem::run(*options);
}
