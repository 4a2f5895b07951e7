// A draft model's passes, with masks if it has some: they guess what it will say after its next
// token, and its next pass finds out (BiTA, METHODS section 3), so that a pass says several tokens.
// What is still guessed when drafting ends may be judged as it is (PARD, arXiv 2504.18583).
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// How the drafts of a request are made.
struct Draft {
  Stage stage;
  bool by_ratio = false;
  float min_probability = 0;
  int vocab = 0;  // Warp::vocab
  int masks = 0;  // that hang on each row that draws; none where by_ratio
};

// Rows of nodes and masks that a pass has at most beside those of drafts.
constexpr int masked_draft_rows(int masks) { return masks * (masks + 1); }

// Draws from `rows` of the draft: by the target's own race, or for the ratio rule apart from it.
Read draft_read(Gen g, const Draft& d, RowList rows);

// A token that a draft model says or guesses.
struct Proposal {
  Token token = -1;
  float probability = 0;  // the largest of its row
};

struct DraftPass {
  std::vector<Proposal> said;  // at least one
  TicketId ticket = 0;         // that has said them, and where by_ratio keeps the distribution
};

// The draft's next pass behind seq() and `x`, which it has said or somebody else. `guesses` are
// those behind x before it, and behind x and what it says after it. At most `room` tokens in all.
// REQUIRES: room >= 1; a round that holds the rows of x and masked_draft_rows(d.masks) more.
Task<DraftPass> draft_pass(Gen g, const Draft& d, const std::vector<Token>& x, int room,
                           std::vector<Proposal>* guesses);

}  // namespace tandem
