#include "engine/decode/bita.h"

#include <algorithm>
#include <string>

#include "engine/host/deployment.h"
#include "engine/host/methods/entry.h"

namespace tandem {
namespace {

// Most rows of a tree, with its masks, in one round.
constexpr int kMostRows = 256;

int tree_rows(const BitaParams& a) {
  return bita_tree_rows(a.tree, a.num_masks.value_or(kBitaMasks), a.num_candidates);
}

MethodNeeds needs_of(const BitaParams& a, const DeploymentConfig& d) {
  ModelInRole large = of_large(d);
  large.mask_adapter = a.adapter;
  large.masks = a.num_masks.value_or(1);
  MethodNeeds needs{{std::move(large)}, {}};
  if (a.adapter.empty()) {
    needs.lacking = Refusal();  // whatever the parameters
  } else if (const int rows = tree_rows(a); rows > kMostRows) {
    needs.lacking = Refusal{"tree", std::to_string(rows) + " rows with these masks and candidates",
                            std::to_string(kMostRows) + " rows or fewer"};
  }
  return needs;
}

}  // namespace

const MethodEntry& bita_entry() {
  using P = BitaParams;
  static const auto* const kEntry = make_entry<P>({
      .name = "bita",
      .requirement = "`bita.adapter`, masks among the large model's extras",
      .drafts = true,
      .fields = Fields<P>()
                    .add("num_masks", &P::num_masks, {1, 16}, "tokens predicted in a round")
                    .add("num_candidates", &P::num_candidates, {1, 16}, "candidates per mask token")
                    .add("tree", &P::tree,
                         {{"TREE_EFFICIENT", BitaTreeKind::kEfficient},
                          {"TREE_SPINE", BitaTreeKind::kSpine},
                          {"TREE_TRIANGLE", BitaTreeKind::kTriangle},
                          {"TREE_FULL", BitaTreeKind::kFull},
                          {"TREE_CHAIN", BitaTreeKind::kChain},
                          {"TREE_STRAIGHTFORWARD", BitaTreeKind::kStraightforward}},
                         "shape of the candidate tree, and which of its nodes have masks")
                    .add("pace", &P::pace,
                         {{"PACE_FIXED", Pace::kFixed}, {"PACE_FASTEST", Pace::kFastest}},
                         "which part of the tree: always all of it, or the fastest")
                    .add("draft_vocabulary", &P::draft_vocabulary, {0, 1 << 24},
                         "only ids below this are candidates; 0: all; unset: chosen by the model")
                    .add("adapter", &P::adapter, "mask tokens: one of the large model's `extras`",
                         Field::By::kDeployment),
      .needs = needs_of,
      .bind =
          [](const Deployment& d, LoraId lora, P* a) {
            if (!a->draft_vocabulary) a->draft_vocabulary = d.early_vocabulary;
            if (!a->num_masks) {
              const ModelShape& large = d.large->shape;
              const AdapterId adapter = find_adapter(large, a->adapter);
              a->num_masks = std::min(kBitaMasks, large.adapters[adapter.index()].masks);
            }
            a->stats = d.acceptance_of(lora);
          },
      .contract = [](const P&, bool) { return Contract::kExact; },
      .extra_rows = tree_rows,
      .start = bita,
  });
  return *kEntry;
}

}  // namespace tandem
