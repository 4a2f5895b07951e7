// Bi-directional tuning, BiTA: arXiv 2401.12522. One model drafts and verifies
// itself in the same pass. Mask rows, fed with learned inputs behind the text, foresee the tokens
// after the next one; what they see most likely is the tree that the next pass verifies, with masks
// of its own on the nodes, so that wherever it ends the next tree is known.
#pragma once

#include <memory>
#include <string>

#include "engine/async/task.h"
#include "engine/decode/bita_tree.h"
#include "engine/decode/gen.h"

namespace tandem {

struct BitaLore;  // engine/decode/bita_budget.h

struct BitaParams {
  int num_masks = 3;       // M of the adapter's masks. [1, 16]
  int num_candidates = 5;  // k: a mask's best tokens. [1, 16]
  BitaTreeKind tree = BitaTreeKind::kEfficient;
  // As much of the tree as makes tokens fastest, by what masks foresee and what rows cost
  // (engine/decode/bita_budget.h); else all of it in every round.
  bool only_if_faster = true;
  std::string adapter;  // where the masks are, by the name that the deployment knows
  // What other requests have learnt about trees that pay; null: none has.
  std::shared_ptr<BitaLore> lore = {};
};

// EXACT: each row that is not a mask draws as autoregressive decoding does, and a node stays if it
// is what its parent draws.
// REQUIRES: Role::kLarge with masks (CastRole::mask_adapter).
Task<void> bita(Gen g, BitaParams a);

}  // namespace tandem
