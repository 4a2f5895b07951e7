#include "engine/decode/speculative.h"

#include "engine/host/deployment.h"
#include "engine/host/methods/small_masks.h"

namespace tandem {

const MethodEntry& speculative_entry() {
  using P = SpeculativeParams;
  static const auto* const kEntry = make_entry<P>({
      .name = "speculative",
      .requirement = "a `small` model",
      .drafts = true,
      .stricter = {{{"acceptance", std::string("ACCEPTANCE_MATCH")}}},
      .automatic = {{"draft_tokens", int64_t{12}}, {"adaptive", true}, {"only_if_faster", true}},
      .fields =
          Fields<P>()
              .add("draft_tokens", &P::draft_tokens, {1, 64}, "drafts in a round")
              .add("adaptive", &P::adaptive, "steer draft_tokens by what is kept")
              .add("only_if_faster", &P::only_if_faster, "drafts as far as they make it faster")
              .add("min_draft_probability", &P::min_draft_probability, {0, 1},
                   "drafting stops before a token that is less likely than this")
              .add("num_masks", &P::num_masks, {0, 16},
                   "tokens that the small model's masks foresee in each of its passes")
              .add("adapter", &P::adapter, "masks: an extra of the small model",
                   Field::By::kDeployment)
              .add("draft_vocabulary", &P::draft_vocabulary, {0, 1 << 24},
                   "only ids below this are drafted; 0: all; unset: what suits the models")
              .add("acceptance", &P::acceptance,
                   {{"ACCEPTANCE_MATCH", P::Acceptance::kMatch},
                    {"ACCEPTANCE_RATIO", P::Acceptance::kRatio}},
                   "which drafts stay when tokens are sampled"),
      .needs =
          [](const P& a, const DeploymentConfig& d) {
            MethodNeeds needs{{of_large(d), of_small(d)}, {}};
            if (d.small.empty()) needs.lacking = Refusal();  // whatever the parameters
            need_small_masks(a, &needs);
            return needs;
          },
      .bind =
          [](const Deployment& d, P* a) {
            // Under the ratio rule the draft distribution changes the tokens that a seed draws.
            if (!a->draft_vocabulary && a->acceptance == P::Acceptance::kMatch) {
              a->draft_vocabulary = d.draft_vocabulary;
            }
            a->num_masks = small_masks(*a);
            a->lore = d.draft_lore;
          },
      .contract =
          [](const P& a, bool greedy) {
            return speculative_is_exact(a, greedy) ? Contract::kExact : Contract::kDistribution;
          },
      .extra_rows = [](const P& a) { return masked_draft_rows(small_masks(a)); },
      .start = speculative,
  });
  return *kEntry;
}

}  // namespace tandem
