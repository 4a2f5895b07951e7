#include "engine/decode/llm_to_slm.h"

#include "engine/host/deployment.h"
#include "engine/host/methods/projector.h"
#include "engine/host/methods/small_masks.h"
#include "engine/host/methods/speculative_fields.h"

namespace tandem {
namespace {

struct Params : LlmToSlmParams {
  std::string projector;  // among the small model's extras; empty: not offered
};

int masks_of(const Params& a) { return a.speculative ? small_masks(a) : 0; }

MethodNeeds needs_of(const Params& a, const DeploymentConfig& d) {
  MethodNeeds needs{{of_large(d), of_small(d)}, {}};
  needs.models[0].prompt_only = !a.speculative;
  needs.models[1].adapter = a.projector;
  needs.models[1].conditioned_by = Role::kLarge;
  if (a.projector.empty() || d.small.empty()) needs.lacking = Refusal();
  if (a.speculative) need_small_masks(a, &needs, "mask_adapter");
  return needs;
}

std::optional<Refusal> misfit_of(const Params& a, const Deployment& d) {
  return a.projector.empty() ? std::nullopt : projector_misfit(a.projector, d);
}

void bind(const Deployment& d, LoraId lora, Params* a) {
  if (!a->draft_vocabulary) a->draft_vocabulary = d.draft_vocabulary;
  a->drafts_text_ids = d.small->shape.reads_single_ids;
  a->num_masks = masks_of(*a);
  a->stats = d.conditioned_of(lora);
}

}  // namespace

const MethodEntry& llm_to_slm_entry() {
  using P = Params;
  static const auto* const kEntry = make_entry<P>({
      .name = "llm_to_slm",
      .requirement = "a `small` model and `llm_to_slm.adapter`",
      .drafts = true,
      .looks_up = true,
      .stricter = {{{"speculative", true}}},
      .variant = "speculative",
      .fields = draft_fields(
          Fields<P>()
              .add("speculative", &P::speculative,
                   "the large model verifies the small model's tokens")
              .add("adapter", &P::projector, "the projector, among the small model's extras",
                   Field::By::kDeployment),
          "mask_adapter"),
      .needs = needs_of,
      .misfit = misfit_of,
      .bind = bind,
      .contract = [](const P& a,
                     bool) { return a.speculative ? Contract::kExact : Contract::kLossy; },
      // With `speculative` the large model and its adapter choose each token.
      .no_lora =
          [](const P& a) {
            return a.speculative ? std::string()
                                 : "its projector was trained for hidden states without an adapter";
          },
      .extra_rows = [](const P& a) { return parallel_draft_rows(masks_of(a)); },
      .start = llm_to_slm,
  });
  return *kEntry;
}

}  // namespace tandem
