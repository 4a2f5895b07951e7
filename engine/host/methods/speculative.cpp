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
      .automatic = {{"draft_tokens", int64_t{12}}, {"pace", std::string("PACE_FASTEST")}},
      .fields =
          Fields<P>()
              .add("draft_tokens", &P::draft_tokens, {1, 64}, "draft tokens in a round, at most")
              .add("pace", &P::pace,
                   {{"PACE_FIXED", Pace::kFixed},
                    {"PACE_ADAPTIVE", Pace::kAdaptive},
                    {"PACE_FASTEST", Pace::kFastest}},
                   "how many drafts: always draft_tokens, after the accept length, or the fastest")
              .add("min_draft_probability", &P::min_draft_probability, {0, 1},
                   "drafting stops below this probability")
              .add("num_masks", &P::num_masks, {0, 16},
                   "parallel draft tokens: mask tokens of the small model in each of its passes")
              .add("adapter", &P::adapter, "mask tokens: one of the small model's `extras`",
                   Field::By::kDeployment)
              .add("draft_vocabulary", &P::draft_vocabulary, {0, 1 << 24},
                   "only ids below this are drafted; 0: all; unset: chosen by the models")
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
          [](const Deployment& d, P* a) {
            // Under the ratio rule the draft distribution changes the tokens that a seed draws.
            if (!a->draft_vocabulary && a->acceptance == P::Acceptance::kMatch) {
              a->draft_vocabulary = d.draft_vocabulary;
            }
            a->num_masks = small_masks(*a);
            a->stats = d.acceptance_stats;
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
