#include "engine/decode/bita.h"

#include <string>

#include "engine/host/deployment.h"
#include "engine/host/methods/entry.h"

namespace tandem {
namespace {

// Most rows of a tree, with its masks, in one round.
constexpr int kMostRows = 256;

MethodNeeds needs_of(const BitaParams& a, const DeploymentConfig& d) {
  ModelInRole large = of_large(d);
  large.adapter = a.adapter;
  large.masks = a.num_masks;
  MethodNeeds needs{{std::move(large)}, {}};
  if (a.adapter.empty()) {
    needs.lacking = Refusal();  // whatever the parameters
  } else if (bita_tree_rows(a.tree, a.num_masks, a.num_candidates) > kMostRows) {
    needs.lacking = Refusal{"tree",
                            std::to_string(bita_tree_rows(a.tree, a.num_masks, a.num_candidates)) +
                                " rows with these masks and candidates",
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
                    .add("num_masks", &P::num_masks, {1, 16}, "tokens that are foreseen in a round")
                    .add("num_candidates", &P::num_candidates, {1, 16},
                         "a mask's best tokens that are tried")
                    .add("tree", &P::tree,
                         {{"TREE_EFFICIENT", BitaTreeKind::kEfficient},
                          {"TREE_SPINE", BitaTreeKind::kSpine},
                          {"TREE_TRIANGLE", BitaTreeKind::kTriangle},
                          {"TREE_FULL", BitaTreeKind::kFull},
                          {"TREE_CHAIN", BitaTreeKind::kChain},
                          {"TREE_STRAIGHTFORWARD", BitaTreeKind::kStraightforward}},
                         "which candidates are tried together, and where masks hang")
                    .add("only_if_faster", &P::only_if_faster,
                         "no more masks, candidates and rows than make it faster")
                    .add("adapter", &P::adapter, "masks: an extra of the large model",
                         Field::By::kDeployment),
      .needs = needs_of,
      .bind = [](const Deployment& d, P* a) { a->lore = d.bita_lore; },
      .contract = [](const P&, bool) { return Contract::kExact; },
      .extra_rows =
          [](const P& a) { return bita_tree_rows(a.tree, a.num_masks, a.num_candidates); },
      .start = bita,
  });
  return *kEntry;
}

}  // namespace tandem
