// A small model's passes, with masks if it has some: they guess what it will say after its next
// token, and its next pass finds out (BiTA), so that a pass says several tokens.
// What it says is what it would have said in passes of one token each.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// Rows of nodes and masks that a pass has at most beside those of what it says.
constexpr int masked_draft_rows(int masks) { return masks * (masks + 1); }

// A token that a small model says or guesses.
struct Proposal {
  Token token = -1;
  float probability = 0;  // the largest of its row
};

struct DraftPass {
  std::vector<Proposal> said;  // at least one
  TicketId ticket = 0;
};

// The pass behind seq() and `x`, each of its rows read as `how` says. `guesses`, of what comes
// behind x, are judged, and become those of what comes behind what is said. Of both together there
// are no more than `room`. REQUIRES: room >= 1; that x outlives it; a round that holds all of these
// rows and masked_draft_rows(masks) more.
Task<DraftPass> draft_pass(Gen g, Stage stage, Read how, int masks, const std::vector<Token>* x,
                           int room, std::vector<Proposal>* guesses);

}  // namespace tandem
