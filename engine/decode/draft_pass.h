// Passes of a small model, with or without mask tokens. Mask tokens predict the tokens after the
// next one (parallel draft tokens, as in PARD, by the masks of BiTA). The next
// pass verifies them, so one pass may produce several tokens. They equal those of passes without
// masks.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// Rows of parallel draft tokens and masks in a pass, at most.
constexpr int parallel_draft_rows(int masks) { return masks * (masks + 1); }

struct DraftToken {
  Token token = -1;
  float probability = 0;  // the largest of its row
};

struct DraftPass {
  std::vector<DraftToken> tokens;  // the small model's own, at least one
  TicketId ticket = 0;
  int rows = 0;
  int works = 1;  // passes in its batch
};

// A pass over what follows seq() and `x`, with each row read as `how`. It verifies the tokens in
// `parallel`, which follow x, and replaces them by those that follow the produced tokens. Both
// together are at most `room`. REQUIRES: room >= 1; x and parallel outlive it; a round that holds
// these rows and parallel_draft_rows(masks) more.
Task<DraftPass> draft_pass(Gen g, Stage stage, Read how, int masks, const std::vector<Token>* x,
                           int room, std::vector<DraftToken>* parallel);

}  // namespace tandem
