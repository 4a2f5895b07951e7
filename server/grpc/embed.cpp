#include "server/grpc/embed.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "server/grpc/request_from_proto.h"

namespace tandem {
namespace {

constexpr int kMaxInputs = 2048;
constexpr int kConcurrentInputs = 32;  // at a time: fairness and batches, not the whole queue

}  // namespace

Embedder embedder_of(Engine* engine) {
  return {.embed = [engine](EmbedRequest request,
                            const auto& done) { return engine->embed(std::move(request), done); },
          .cancel = [engine](RequestId id) { engine->cancel(id); }};
}

absl::Status check_embed(const v1::EmbedRequest& request, absl::string_view inputs) {
  Violations wrong;
  wrong.add(check_model_name(request.model()));
  if (request.inputs_size() < 1 || request.inputs_size() > kMaxInputs) {
    wrong.add(out_of_range(inputs, absl::StrCat(request.inputs_size(), " inputs"),
                           absl::StrCat("1 to ", kMaxInputs)));
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    const v1::EmbedInput& input = request.inputs(i);
    if (!input.text().empty() || input.token_ids().ids_size() > 0) continue;
    wrong.add(out_of_range(absl::StrCat(inputs, "[", i, "]"), "empty", "a text or token ids"));
    break;
  }
  if (request.has_dimensions() && request.dimensions() < 1) {
    wrong.add(out_of_range("dimensions", request.dimensions(), "1 to the size of an embedding"));
  }
  if (request.priority() < -100 || request.priority() > 100) {
    wrong.add(out_of_range("priority", request.priority(), "-100 to 100"));
  }
  return wrong.status();
}

int64_t answer_bytes(const v1::EmbedRequest& request, const Engine& engine) {
  const absl::StatusOr<DeploymentInfo> deployment = engine.deployment(request.model());
  if (!deployment.ok()) return 0;
  const int width = deployment->embedding_width;
  const int values = request.has_dimensions() ? std::min(request.dimensions(), width) : width;
  return int64_t{request.inputs_size()} * values * static_cast<int64_t>(sizeof(float));
}

std::shared_ptr<Embed> Embed::start(v1::EmbedRequest request, const CallInfo& info,
                                    Embedder embedder, std::shared_ptr<OpenCall> open, Done done,
                                    std::string inputs) {
  const std::shared_ptr<Embed> embed(new Embed(std::move(request), info, std::move(embedder),
                                               std::move(open), std::move(done),
                                               std::move(inputs)));
  embed->send_first(kConcurrentInputs);
  return embed;
}

Embed::Embed(v1::EmbedRequest asked, const CallInfo& info, Embedder embedder,
             std::shared_ptr<OpenCall> open, Done done, std::string inputs)
    : PartedCall(std::move(asked), &v1::EmbedRequest::inputs_size, info, embedder.cancel,
                 std::move(open), std::move(done)),
      inputs_(std::move(inputs)),
      embedder_(std::move(embedder)) {
  response_.set_request_id(request_id);
  for (int i = 0; i < request.inputs_size(); ++i) response_.add_embeddings();
}

void Embed::submit(int input) {
  auto one = part_request<EmbedRequest>();
  const v1::EmbedInput& from = request.inputs(input);
  if (from.has_token_ids()) {
    one.prompt = std::vector<Token>(from.token_ids().ids().begin(), from.token_ids().ids().end());
  } else {
    one.prompt = from.text();
  }
  if (request.has_prefix()) one.prefix = request.prefix();
  one.prompt_name = request.prompt_name();
  if (request.has_add_special_tokens()) one.add_special_tokens = request.add_special_tokens();
  one.dimensions = request.dimensions();
  if (request.has_normalize()) one.normalize = request.normalize();
  sent(input, embedder_.embed(std::move(one), [self = shared_from_this(),
                                               input](const absl::StatusOr<EmbedResult>& result) {
    self->embedded(input, result);
  }));
}

void Embed::embedded(int input, const absl::StatusOr<EmbedResult>& result) {
  if (!result.ok()) {
    return fail(annotate(result.status(), absl::StrCat(inputs_, "[", input, "]")));
  }
  {
    const MutexLock lock(&mutex);
    v1::Embedding& embedding = *response_.mutable_embeddings(input);
    embedding.mutable_values()->Add(result->values.begin(), result->values.end());
    v1::Usage& usage = *response_.mutable_usage();
    usage.set_prompt_tokens(usage.prompt_tokens() + result->usage.prompt_tokens);
  }
  part_done();
}

v1::EmbedResponse Embed::response() { return std::move(response_); }

}  // namespace tandem
