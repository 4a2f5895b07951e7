#include "engine/decode/speculative.h"

#include "engine/host/deployment.h"
#include "engine/host/methods/small_masks.h"
#include "engine/host/methods/speculative_fields.h"

namespace tandem {

const MethodEntry& speculative_entry() {
  using P = SpeculativeParams;
  static const auto* const kEntry = make_entry<P>({
      .name = "speculative",
      .requirement = "a `small` model",
      .drafts = true,
      .looks_up = true,
      .stricter = {{{"acceptance", std::string("ACCEPTANCE_MATCH")}}},
      .automatic = {{"draft_tokens", int64_t{64}}, {"pace", std::string("PACE_FASTEST")}},
      .fields = draft_fields(Fields<P>(), "adapter")
                    .add("acceptance", &P::acceptance,
                         {{"ACCEPTANCE_MATCH", P::Acceptance::kMatch},
                          {"ACCEPTANCE_RATIO", P::Acceptance::kRatio}},
                         "which draft tokens are accepted when sampling"),
      .needs =
          [](const P& a, const DeploymentConfig& d) {
            MethodNeeds needs{{of_large(d), of_small(d)}, {}};
            if (d.small.empty()) needs.lacking = Refusal();  // whatever the parameters
            need_small_masks(a, &needs);
            return needs;
          },
      .bind =
          [](const Deployment& d, LoraId lora, P* a) {
            // Under the ratio rule the draft distribution changes the tokens that a seed draws.
            if (!a->draft_vocabulary && a->acceptance == P::Acceptance::kMatch) {
              a->draft_vocabulary = d.draft_vocabulary;
            }
            a->drafts_text_ids = d.small->shape.reads_single_ids;
            a->num_masks = small_masks(*a);
            a->stats = d.acceptance_of(lora);
          },
      .contract =
          [](const P& a, bool greedy) {
            return speculative_is_exact(a, greedy) ? Contract::kExact : Contract::kDistribution;
          },
      .extra_rows = [](const P& a) { return parallel_draft_rows(small_masks(a)); },
      .start = speculative,
  });
  return *kEntry;
}

}  // namespace tandem
