// The engine: models on devices behind one scheduler. This is all that a server needs to know.
//
// submit() never blocks: what cannot be taken is refused at once, and nothing of it kept. Else the
// prompt is rendered and tokenized on a thread for that, the request is validated there, admitted
// or refused by the loop, and every outcome reaches the sink. All methods are thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
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
#include "engine/host/requests/request.h"
#include "engine/sched/metrics.h"

namespace tandem {

struct ClientUse;

// Times since; zero: idle.
struct Vitals {
  Duration step{0};                                       // the loop began its step
  std::vector<std::pair<std::string, Duration>> batches;  // by device: it began its oldest batch
};

class Engine {
 public:
  // Loads every model (a progress line each through `progress`) and runs a warm-up pass of each.
  // Errors name the model and the file or field.
  static absl::StatusOr<std::unique_ptr<Engine>> create(
      EngineConfig config, const std::function<void(absl::string_view)>& progress = {});
  ~Engine();  // as shutdown(now)

  // The returned id names the request, with all its choices, in cancel() and pause(). Outcomes,
  // refusals included, reach `sink`, which is kept until its last call.
  RequestId submit(GenerateRequest request, const std::shared_ptr<Sink>& sink);

  // Ends the request with CANCELLED at its next step, in whatever state it is. Unknown or ended
  // ids are ignored.
  void cancel(RequestId id);

  // The request's reader is behind: it makes no further tokens, beyond those under way, until
  // resume(). Meanwhile it may lose its pages to others, and in the end its patience
  // (LimitsConfig). These two only leave a message for the loop, so a sink may call them.
  void pause(RequestId id);
  void resume(RequestId id);

  // Log-probabilities of given tokens. `done` is called once, as a sink's failed() is.
  RequestId score(ScoreRequest request,
                  const std::function<void(absl::StatusOr<ScoreResult>)>& done);

  // Text only. They take their turn with the prompts of requests, and are refused likewise. `done`
  // is called once, as a sink's failed() is.
  RequestId tokenize(TokenizeRequest request,
                     const std::function<void(absl::StatusOr<std::vector<Token>>)>& done);
  RequestId detokenize(DetokenizeRequest request,
                       const std::function<void(absl::StatusOr<std::string>)>& done);
  // What the token adds to a text: bytes that need not be UTF-8. Empty for what is unknown.
  std::string token_bytes(absl::string_view model, Token id) const;
  // The same of the tokens that answer a request, which may be those of a deployment's small model.
  // Good as long as this is.
  std::function<std::string(Token)> token_bytes(const GenerateRequest& request) const;

  std::vector<DeploymentInfo> deployments() const;
  absl::StatusOr<DeploymentInfo> deployment(absl::string_view name) const;
  std::vector<DeviceInfo> devices() const;

  // `lost` is called once for each device that fails for good, with its name, on an engine thread:
  // when the first request that it took along has ended. It must not call this. An empty one: none
  // is called any more, and none is under way when this returns.
  void on_device_lost(std::function<void(const std::string& device)> lost);

  // How long the engine has been at what it does, for those who watch the process.
  Vitals vitals() const;

  // From here on new requests get UNAVAILABLE; running ones go on.
  void start_drain();
  // Requests accepted and not yet ended.
  int64_t live_requests() const;
  // Ends what still runs at `deadline` with UNAVAILABLE, and returns when nothing runs.
  void shutdown(TimePoint deadline);

  // Fed by the loop; read by the metrics endpoint at any time.
  const Metrics& metrics() const;
  // By name; under "" all clients that the limits do not name. Likewise.
  const std::map<std::string, ClientUse>& client_uses() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
