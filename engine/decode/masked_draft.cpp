#include "engine/decode/masked_draft.h"

#include <algorithm>
#include <utility>

#include "engine/decode/mask_rows.h"

namespace tandem {
namespace {

// A chain with masks on all rows, as far as what they guess has room: the root says the first token
// of it, node i the next but i, and m_j on either guesses the j-th after that.
BitaTree chain_of(int nodes, int masks, int room) {
  BitaTree tree;
  tree.root_masks = std::min(masks, room - 1);
  for (int i = 0; i < nodes; ++i)
    tree.nodes.push_back({i - 1, i + 1, 0, std::min(masks, room - 2 - i)});
  return tree;
}

}  // namespace

Task<DraftPass> draft_pass(Gen g, Stage stage, Read how, int masks, const std::vector<Token>* x,
                           int room, std::vector<Proposal>* guesses) {
  Candidates candidates;
  for (const Proposal& guess : *guesses) candidates.push_back({guess.token});
  const int nodes = std::min(static_cast<int>(guesses->size()), room - 1);
  Pass p = g.catch_up(stage, *x);
  const LaidTree laid = lay(chain_of(nodes, masks, room), candidates, &p);
  Read foreseen = predicted_by(g, laid.masks, 1);
  foreseen.warp.vocab = how.warp.vocab;
  how.rows = laid.rows;
  how.max_prob = foreseen.max_prob = true;
  p.reading(std::move(how));
  if (!laid.masks.empty()) p.reading(std::move(foreseen));
  Ticket ticket = g.submit(std::move(p));
  DraftPass done;
  done.ticket = ticket.id();
  Readout r = co_await ticket;

  size_t last = 0;  // row of laid.rows that what was said goes up to
  const auto say = [&] { done.said.push_back({r.row[last].token, r.row[last].max_prob}); };
  for (say(); last < laid.token.size() && laid.token[last] == r.row[last].token; say()) ++last;
  guesses->clear();
  const int on_last = laid.tree.masks(static_cast<int>(last) - 1);
  for (int i = 0; i < on_last; ++i) {
    const size_t mask = laid.rows.size() + static_cast<size_t>(laid.group[last] + i);
    if (r.row[mask].top.empty()) break;  // everything is banned
    guesses->push_back({r.row[mask].top[0].token, r.row[mask].max_prob});
  }
  if (laid.tree.rows() > 0) {
    std::vector<Row> path;
    for (Row row = 0; row <= laid.rows[last]; ++row) path.push_back(row);
    g.retain(stage.cache, path);
  }
  co_return done;
}

}  // namespace tandem
