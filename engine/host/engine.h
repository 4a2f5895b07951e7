// The engine: models on devices behind one scheduler. This is the interface for servers.
//
// submit() never blocks. It refuses a request at once or queues it. A tokenizing thread renders,
// tokenizes and validates it, and the loop admits it. Every outcome reaches the sink. All methods
// are thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/base/ids.h"
#include "engine/cache/prefix_listener.h"
#include "engine/host/prefixes/saved_prefixes.h"
#include "engine/host/requests/request.h"
#include "engine/sched/metrics.h"

namespace tandem {

struct ClientUse;
class MemoryAccount;
struct OpenCall;

// Liveness of the engine's threads. Zero: idle.
struct Vitals {
  Duration step{0};                                       // since the loop began its step
  std::vector<std::pair<std::string, Duration>> batches;  // since a device began its oldest batch
};

// A deployment, and what it has.
struct DeploymentState {
  DeploymentInfo info;
  bool draining = false;  // it takes no new requests
  int64_t open_requests = 0;
  // Since the name was loaded first.
  int64_t loads = 0;
  int64_t idle_unloads = 0;
  int64_t failed_loads = 0;  // for waiting requests
};

class Engine {
 public:
  // Loads every model, with a line of progress for each, and warms it up.
  // Errors name the model and the file or field. Memory of requests is charged to `memory`, from
  // submit() until a request ends; null: it is not counted. prefix_listener: outlives the engine;
  // may be null. `progress` is also called later, when a request has a deployment loaded again.
  // idle_clock: measures how long deployments are idle, and outlives the engine; null: a steady
  // one.
  static absl::StatusOr<std::unique_ptr<Engine>> create(
      EngineConfig config, const std::function<void(absl::string_view)>& progress = {},
      std::shared_ptr<MemoryAccount> memory = nullptr, PrefixListener* prefix_listener = nullptr,
      const Clock* idle_clock = nullptr);
  ~Engine();  // like shutdown(now)

  // The id names the request, with all its choices, in cancel() and pause(). Outcomes, refusals
  // too, reach `sink`, which lives until its last call.
  RequestId submit(GenerateRequest request, const std::shared_ptr<Sink>& sink);

  // Ends the request with CANCELLED at its next step, in any state. Unknown and ended ids are
  // ignored.
  void cancel(RequestId id);

  // For slow readers: after the passes under way the request makes no tokens until resume(). While
  // paused it may be preempted, and it ends after LimitsConfig::stalled_stream_seconds. Both calls
  // only post a message to the loop, so a sink may make them.
  void pause(RequestId id);
  void resume(RequestId id);

  // A call of many requests to `model`, which counts as one request of its client for quotas until
  // the result is destroyed. The engine outlives the result. An error refuses the call.
  absl::StatusOr<std::shared_ptr<OpenCall>> open_call(absl::string_view model,
                                                      const std::string& client);

  // Log-probabilities of given tokens. `done` is called once, under the rules of Sink.
  RequestId score(ScoreRequest request,
                  const std::function<void(absl::StatusOr<ScoreResult>)>& done);

  // The embedding of one text. `done` is called once, under the rules of Sink.
  RequestId embed(EmbedRequest request,
                  const std::function<void(absl::StatusOr<EmbedResult>)>& done);

  // Text only. They queue with the prompts of requests and can be refused like them. `done` is
  // called once, under the rules of Sink.
  RequestId tokenize(TokenizeRequest request,
                     const std::function<void(absl::StatusOr<std::vector<Token>>)>& done);
  RequestId detokenize(DetokenizeRequest request,
                       const std::function<void(absl::StatusOr<std::string>)>& done);
  // The bytes that a token adds to a text; not always UTF-8. Empty for unknown models and ids.
  std::string token_bytes(absl::string_view model, Token id) const;
  // The same for the tokens of a request's answer, which may be the small model's. The engine must
  // outlive the result.
  std::function<std::string(Token)> token_bytes(const GenerateRequest& request) const;

  std::vector<DeploymentInfo> deployments() const;
  // `model`: as in requests. Of an adapter: its deployment.
  absl::StatusOr<DeploymentInfo> deployment(absl::string_view model) const;
  // The adapter of a request with these fields; empty: none, or the fields are wrong.
  std::string adapter(absl::string_view model, absl::string_view adapter) const;
  std::vector<DeviceInfo> devices() const;

  // Loads a LoRA adapter of the deployment `model` while requests run, and blocks until requests
  // can name it. `model` may be empty if there is one deployment. The file or folder `path` must
  // not change meanwhile. With `replace`, an adapter of the same name gets no new requests.
  // Requests that were accepted with it end with it. An error leaves everything as it was.
  // NOT_FOUND: an unknown deployment, or no such file. INVALID_ARGUMENT: a wrong name or file.
  // ALREADY_EXISTS: the name is taken. FAILED_PRECONDITION: the model takes no adapters, or the
  // adapter of that name is of the configuration. RESOURCE_EXHAUSTED: DeploymentConfig's limits,
  // and too little of it is idle.
  struct AdapterLoad {
    std::string model = {};
    std::string name = {};
    std::string path = {};
    bool replace = false;
  };
  absl::Status load_adapter(const AdapterLoad& load);
  // Ends new requests for an adapter at once. Its memory, prefixes and metrics are freed when no
  // request has it. `model` may be empty if no other deployment has such an adapter. NOT_FOUND
  // lists the known names; FAILED_PRECONDITION: it is of the configuration.
  absl::Status unload_adapter(absl::string_view model, const std::string& name);

  // Loads a deployment while requests run, with models that no loaded deployment has, and blocks
  // until requests can name it. `models`: their definitions; one that is loaded with the same
  // definition is shared. The configuration is valid (config/config.h). With `replace`, new
  // requests of the name go to it, and those that were accepted before end with the old one. An
  // error leaves everything as it was. ALREADY_EXISTS: the name of the deployment, or of a model
  // with another definition, is taken. NOT_FOUND: `replace` without such a deployment, or no such
  // file. INVALID_ARGUMENT: a wrong name, file or method. FAILED_PRECONDITION: a loaded model lacks
  // what a method needs. RESOURCE_EXHAUSTED, with the figures: too little memory next to the other
  // models.
  struct DeploymentLoad {
    std::vector<ModelConfig> models = {};
    DeploymentConfig deployment = {};
    bool replace = false;
    std::function<void(absl::string_view)> progress = {};  // takes one line
  };
  absl::Status load_deployment(const DeploymentLoad& load);
  // Ends new requests for a deployment at once, and blocks until it is gone and the models that
  // only it had are freed. Accepted requests end with it; those that are left after `limit` end
  // with UNAVAILABLE. `removed` is called once requests cannot name it. NOT_FOUND lists the known
  // names.
  absl::Status unload_deployment(const std::string& name, std::optional<Duration> limit,
                                 const std::function<void()>& removed = {});
  // Unloads the deployments that have been idle for DeploymentConfig::unload_after_idle_seconds. A
  // later request for one waits in the queue of tokenization until it is loaded again, and is then
  // started like others. UNAVAILABLE, reason LOAD_FAILED, with a retry delay: it could not be
  // loaded; the next request tries again.
  struct IdleUnloads {
    TimePoint next = kNever;  // no other deployment becomes due before, unless one is added
    std::vector<std::string> names = {};
  };
  IdleUnloads unload_idle();
  // The configurations of the loaded models, by name, and of the devices.
  std::vector<ModelConfig> loaded_models() const;
  const std::vector<DeviceConfig>& device_configs() const;
  // Those that take requests, then those that were unloaded or replaced and still have some.
  std::vector<DeploymentState> deployment_states() const;

  // `lost` is called with the name of each device that fails for good, once, on an engine thread,
  // when the first of its requests has ended. It must not call this function. An empty function
  // ends the calls; none is under way when this returns.
  void on_device_lost(std::function<void(const std::string& device)> lost);

  // For watchdogs.
  Vitals vitals() const;

  // New requests get UNAVAILABLE; running ones continue.
  void start_drain();
  // Accepted requests that have not ended.
  int64_t live_requests() const;
  // Waits until no request is left, at most until `deadline`. False: some are left.
  bool wait_until_idle(TimePoint deadline);
  // Drains. Ends requests that still run at `deadline` with UNAVAILABLE. Returns when none is left.
  void shutdown(TimePoint deadline);

  // Why EngineConfig::statistics_file was not read at start; OK if it was, or does not exist yet.
  const absl::Status& statistics_read() const;
  // Stops the engine as its destructor does, then writes EngineConfig::statistics_file, if there is
  // one. No other function may be called after it.
  absl::Status save_statistics();

  // The first error of reading EngineConfig::prefix_store at start.
  const absl::Status& prefixes_read() const;
  // Saves the shared prefixes in EngineConfig::prefix_store, if there is one and they have changed.
  // Blocks until they are on the disk; requests go on. Pages of lost devices are not saved.
  absl::StatusOr<SavedPrefixes> save_prefixes();

  // Written by the loop. Readable at any time.
  const Metrics& metrics() const;
  // By client; all that the limits do not name are under "". Readable at any time.
  const std::map<std::string, ClientUse>& client_uses() const;
  // The highest priority of the client's requests. Thread-safe.
  int max_priority(const std::string& client) const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
