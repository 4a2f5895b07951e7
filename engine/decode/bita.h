// Bi-directional tuning, BiTA: arXiv 2401.12522. One model drafts and verifies
// in the same pass. Mask tokens behind the text, with learned embeddings, predict the tokens after
// the next one. Their best tokens form the tree that the next pass verifies. Nodes of the tree have
// masks, too, so the next tree is known wherever verification ends.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/async/task.h"
#include "engine/decode/bita_tree.h"
#include "engine/decode/gen.h"
#include "engine/decode/pacing/pace.h"

namespace tandem {

struct AcceptanceStats;

inline constexpr int kBitaMasks = 3;

struct BitaParams {
  // M of the adapter's masks. [1, 16]. Unset: kBitaMasks; the host lowers it to what the adapter
  // has.
  std::optional<int> num_masks;
  int num_candidates = 5;  // k: a mask's best tokens. [1, 16]
  BitaTreeKind tree = BitaTreeKind::kEfficient;
  // kFixed: the whole tree in every round. kFastest: the part of it that makes tokens fastest
  // (engine/decode/pacing/tree_size.h).
  Pace pace = Pace::kFastest;
  std::string adapter;  // of the mask tokens, by the deployment's name for it
  // Only ids below this are candidates, so mask rows compute less of the output matrix. 0: all.
  // Unset: chosen by the model; here all.
  std::optional<int> draft_vocabulary = {};
  std::shared_ptr<AcceptanceStats> stats = {};  // shared by the deployment's requests; may be null
};

// EXACT: each row that is not a mask draws as autoregressive decoding does, and a node is accepted
// if its parent draws it. REQUIRES: Role::kLarge with masks (CastRole::mask_adapter).
Task<void> bita(Gen g, BitaParams a);

}  // namespace tandem
