#include "engine/decode/llm_to_slm.h"

#include "engine/host/methods/entry.h"
#include "engine/host/methods/projector.h"

namespace tandem {
namespace {

struct Params : LlmToSlmParams {
  std::string adapter;  // the projector, among the small model's extras; empty: not offered
};

MethodNeeds needs_of(const Params& a, const DeploymentConfig& d) {
  MethodNeeds needs{{of_large(d), of_small(d)}, {}};
  needs.models[0].prompt_only = !a.speculative;
  needs.models[1].adapter = a.adapter;
  needs.models[1].conditioned_by = Role::kLarge;
  if (a.adapter.empty() || d.small.empty()) needs.lacking = Refusal();
  return needs;
}

std::optional<Refusal> misfit_of(const Params& a, const Deployment& d) {
  return a.adapter.empty() ? std::nullopt : projector_misfit(a.adapter, d);
}

}  // namespace

const MethodEntry& llm_to_slm_entry() {
  using P = Params;
  static const auto* const kEntry = make_entry<P>({
      .name = "llm_to_slm",
      .requirement = "a `small` model and `llm_to_slm.adapter`",
      .drafts = true,
      .stricter = {{{"speculative", true}}},
      .variant = "speculative",
      .fields = Fields<P>()
                    .add("speculative", &P::speculative,
                         "the large model verifies the small model's tokens")
                    .add("draft_tokens", &P::draft_tokens, {1, 64},
                         "drafts in a round, with `speculative`")
                    .add("adapter", &P::adapter, "the projector, among the small model's extras",
                         Field::By::kDeployment),
      .needs = needs_of,
      .misfit = misfit_of,
      .contract = [](const P& a,
                     bool) { return a.speculative ? Contract::kExact : Contract::kLossy; },
      .start = llm_to_slm,
  });
  return *kEntry;
}

}  // namespace tandem
