// Generation.Embed: one engine request per input, a few at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/mutex.h"
#include "engine/host/engine.h"
#include "server/grpc/call_info.h"
#include "server/grpc/parted_call.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// What an embed call uses of the engine.
struct Embedder {
  std::function<RequestId(EmbedRequest, std::function<void(absl::StatusOr<EmbedResult>)>)> embed;
  std::function<void(RequestId)> cancel;
};
Embedder embedder_of(Engine* engine);

// All violations of the request at once. `inputs`: the client's name of that field.
absl::Status check_embed(const v1::EmbedRequest& request, absl::string_view inputs = "inputs");

// Bytes of the values of the answer; 0 for unknown models.
int64_t answer_bytes(const v1::EmbedRequest& request, const Engine& engine);

class Embed : public PartedCall<v1::EmbedRequest, v1::EmbedResponse>,
              public std::enable_shared_from_this<Embed> {
 public:
  // REQUIRES: check_embed(request) is OK. `open` is released before `done` is called. `done` is
  // called once, possibly within start(). The first error of an input ends the call and cancels
  // the others.
  static std::shared_ptr<Embed> start(v1::EmbedRequest request, const CallInfo& info,
                                      Embedder embedder, std::shared_ptr<OpenCall> open, Done done,
                                      std::string inputs = "inputs");

 private:
  Embed(v1::EmbedRequest asked, const CallInfo& info, Embedder embedder,
        std::shared_ptr<OpenCall> open, Done done, std::string inputs);

  void submit(int input) override;
  v1::EmbedResponse response() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void embedded(int input, const absl::StatusOr<EmbedResult>& result);

  const std::string inputs_;
  const Embedder embedder_;
  v1::EmbedResponse response_ ABSL_GUARDED_BY(mutex);
};

}  // namespace tandem
