// A client of tandem.v1: one connection, blocking calls, errors as absl::Status.
//
//   auto client = Client::connect({.server = "127.0.0.1:50051"});
//   v1::GenerateRequest request;
//   request.set_model("code");
//   request.set_text("def main():");
//   absl::Status status = client->generate(request, [](const v1::GenerateResponse& event) {
//     std::cout << event.chunk().text();
//     return true;
//   });
//
// Thread-safe: calls may run concurrently. Connects at the first call and reconnects when needed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/models.pb.h"

namespace tandem {

struct ClientOptions {
  std::string server = "127.0.0.1:50051";
  std::string token;             // bearer token; empty: none
  std::string ca_file;           // PEM: TLS, trusting this authority; empty: no TLS
  std::string certificate_file;  // PEM, with key_file: presented to the server
  std::string key_file;
  std::string traceparent;          // W3C trace context for the server's logs; empty: none
  std::optional<Duration> timeout;  // of each call: DEADLINE_EXCEEDED
};

class Client {
 public:
  // Errors name the unreadable file.
  static absl::StatusOr<std::unique_ptr<Client>> connect(ClientOptions options);
  ~Client();

  // `on_event` is called on this thread for every message, in order. If it returns false, the call
  // is cancelled and ends with CANCELLED.
  absl::Status generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& on_event);
  // Ends all running generate() calls with CANCELLED.
  void cancel();

  absl::StatusOr<v1::CompleteResponse> complete(const v1::GenerateRequest& request);
  absl::StatusOr<v1::ScoreResponse> score(const v1::ScoreRequest& request);
  absl::StatusOr<v1::TokenizeResponse> tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> detokenize(const v1::DetokenizeRequest& request);

  absl::StatusOr<v1::ListModelsResponse> models();
  absl::StatusOr<v1::Model> model(const std::string& name);
  // For administrators.
  absl::Status load_adapter(const v1::LoadAdapterRequest& request);
  absl::Status unload_adapter(const v1::UnloadAdapterRequest& request);
  absl::Status load_deployment(const v1::LoadDeploymentRequest& request);
  absl::Status replace_deployment(const v1::ReplaceDeploymentRequest& request);
  absl::Status unload_deployment(const v1::UnloadDeploymentRequest& request);
  absl::StatusOr<v1::ListDeploymentsResponse> deployments();

  // "SERVING" or "NOT_SERVING". `service`: empty for the server, "tandem.v1.Generation/NAME" for a
  // model.
  absl::StatusOr<std::string> health(const std::string& service = "");

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "INVALID_ARGUMENT"
const char* status_name(absl::StatusCode code);

}  // namespace tandem
