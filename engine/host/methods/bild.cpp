#include "engine/decode/bild.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/small_masks.h"

namespace tandem {
namespace {

struct Params : BildParams {
  bool early_exit = false;   // the small model is the lower layers of the large one
  int early_exit_layer = 0;  // layers [0, this); 0: none
};

MethodNeeds needs_of(const Params& a, const DeploymentConfig& d) {
  MethodNeeds needs{{of_large(d), of_small(d)}, {}};
  if (a.early_exit) {
    needs.models[1] = {Role::kSmall, d.large, a.early_exit_layer, longest_small_run(a) + 1};
  }
  if (a.early_exit && a.early_exit_layer == 0) {
    needs.lacking = {"early_exit", "true", "false (its deployment names no bild.early_exit_layer)"};
  } else if (!a.early_exit && d.small.empty()) {
    needs.lacking = {"early_exit", "false", "true (there is no small model)"};
  } else if (a.early_exit && a.num_masks.value_or(0) > 0) {
    needs.lacking = {"num_masks", absl::StrCat(*a.num_masks), "0 with early_exit"};
  }
  if (!a.early_exit) need_small_masks(a, &needs);
  return needs;
}

std::optional<Refusal> misfit_of(const Params& a, const Deployment& d) {
  const int layers = d.large->shape.layers;
  if (a.early_exit_layer < layers) return std::nullopt;
  return Refusal{"early_exit_layer", absl::StrCat(a.early_exit_layer),
                 absl::StrCat("[1, ", layers - 1, "], below the large model's layers")};
}

}  // namespace

const MethodEntry& bild_entry() {
  using P = Params;
  using By = Field::By;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  static const auto* const kEntry = make_entry<P>({
      .name = "bild",
      .requirement = "a `small` model or `bild.early_exit_layer`",
      .drafts = true,
      // In the order of BildFigures.
      .counters = {{"fallbacks", "Times the small model fell back to the large one."},
                   {"forced_calls", "Times a run of the small model reached max_small_run."},
                   {"rollbacks", "Times the large model replaced a token of the small one."},
                   {"rolled_back_tokens", "Tokens of the small model dropped by rollbacks."}},
      .stricter = {{{"rollback_threshold", 0.69}, {"verify_eos", true}},  // below ln 2
                   {{"fallback_threshold", 1.01}}},
      .variant = "early_exit",
      .fields =
          Fields<P>()
              .add("fallback_threshold", &P::fallback_threshold, {0, 2},
                   "falls back to the large model below this probability of the small model's best "
                   "token")
              .add(
                  "rollback_threshold", &P::rollback_threshold, {0, kInf},
                  "rolls back a small token if the large model's -log p of it is above this (nats)")
              .add("max_small_run", &P::max_small_run, {0, 4096},
                   "small tokens between two large passes; 0 or above 256: 256")
              .add("verify_eos", &P::verify_eos,
                   "the large model verifies an end token of the small one")
              .add("num_masks", &P::num_masks, {0, 16},
                   "parallel draft tokens: mask tokens of the small model in each of its passes")
              .add("adapter", &P::adapter, "mask tokens: one of the small model's `extras`",
                   By::kDeployment)
              .add("early_exit", &P::early_exit,
                   "the small model is the lower layers of the large one", By::kRequest)
              .add("window", &P::window, {1, 64}, "runs of exactly this length, for ablations",
                   By::kRequest)
              .add("early_exit_layer", &P::early_exit_layer, {1, 1023},
                   "layers of the large model that serve as the small one", By::kDeployment),
      .defaults =
          [](const DeploymentConfig& d) {
            P a;
            a.early_exit = d.small.empty();
            return a;
          },
      .needs = needs_of,
      .misfit = misfit_of,
      .bind =
          [](const Deployment& d, LoraId, P* a) {
            a->num_masks = a->early_exit ? 0 : small_masks(*a);
            if (a->early_exit) return;
            a->draft_vocabulary = d.draft_vocabulary;
            a->drafts_text_ids = d.small->shape.reads_single_ids;
          },
      .contract =
          [](const P& a, bool greedy) {
            return bild_is_exact(a, greedy) ? Contract::kExact : Contract::kLossy;
          },
      .extra_rows =
          [](const P& a) { return a.early_exit ? 0 : parallel_draft_rows(small_masks(a)); },
      .start = bild,
  });
  return *kEntry;
}

}  // namespace tandem
