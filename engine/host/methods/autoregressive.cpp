#include "engine/decode/autoregressive.h"

#include "engine/decode/beam.h"
#include "engine/host/methods/registry.h"

namespace tandem {
namespace {

struct NoParams {};

MethodNeeds large_alone(const DeploymentConfig& d) { return {{of_large(d)}, {}}; }

}  // namespace

const MethodEntry& autoregressive_entry() {
  static const auto* const kEntry = make_entry<NoParams>({
      .name = kAutoregressive,
      .single_row_passes = true,
      .needs = [](const NoParams&, const DeploymentConfig& d) { return large_alone(d); },
      // By definition. When sampled, the seed determines the tokens (docs/decoding_methods.md).
      .contract = [](const NoParams&, bool) { return Contract::kExact; },
      .start = [](Gen g, NoParams) { return autoregressive(g); },
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
