#include "engine/decode/autoregressive.h"

#include "engine/decode/beam.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/registry.h"

namespace tandem {
namespace {

struct AutoregressiveParams {
  bool ahead = false;  // passes are submitted before those before them end
};

constexpr int kRoundTokens = 16;  // of passes ahead; the host waits once a round

MethodNeeds large_alone(const DeploymentConfig& d) { return {{of_large(d)}, {}}; }

}  // namespace

const MethodEntry& autoregressive_entry() {
  static const auto* const kEntry = make_entry<AutoregressiveParams>({
      .name = kAutoregressive,
      .single_row_passes = true,
      .needs = [](const AutoregressiveParams&,
                  const DeploymentConfig& d) { return large_alone(d); },
      .bind = [](const Deployment& d, LoraId,
                 AutoregressiveParams* a) { a->ahead = d.large->shape.queued; },
      // By definition. When sampled, the seed determines the tokens (docs/decoding_methods.md).
      .contract = [](const AutoregressiveParams&, bool) { return Contract::kExact; },
      .start =
          [](Gen g, AutoregressiveParams a) {
            return a.ahead ? autoregressive_ahead(g, kRoundTokens) : autoregressive(g);
          },
  });
  return *kEntry;
}

const MethodEntry& beam_entry() {
  using By = Field::By;
  static const auto* const kEntry = make_entry<BeamParams>({
      .name = "beam",
      .single_row_passes = true,
      .stricter = {{{"width", int64_t{1}}}},
      .fields = Fields<BeamParams>()
                    .add("width", &BeamParams::width, {1, 16}, "hypotheses; 1: off", By::kRequest)
                    .add("length_penalty", &BeamParams::length_penalty, {-10, 10},
                         "score is sum(log p) / tokens^length_penalty", By::kRequest),
      .defaults = [](const DeploymentConfig&) { return BeamParams{.width = 1}; },
      .needs = [](const BeamParams&, const DeploymentConfig& d) { return large_alone(d); },
      // EXACT means equal to greedy decoding, which beam search is not.
      .contract = [](const BeamParams& a,
                     bool) { return a.width == 1 ? Contract::kExact : Contract::kLossy; },
      .width = [](const BeamParams& a) { return a.width; },
      .start = beam,
  });
  return *kEntry;
}

}  // namespace tandem
