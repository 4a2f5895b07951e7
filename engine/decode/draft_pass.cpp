#include "engine/decode/draft_pass.h"

#include <algorithm>
#include <utility>

#include "engine/decode/mask_tokens.h"

namespace tandem {
namespace {

// A chain with masks on all rows, as far as there is room for their predictions. The root draws the
// first token and node i token i + 2; m_j predicts the j-th token after the one that its row draws.
BitaTree chain_of(int nodes, int masks, int room) {
  BitaTree tree;
  tree.root_masks = std::min(masks, room - 1);
  for (int i = 0; i < nodes; ++i) {
    tree.nodes.push_back({i - 1, i + 1, 0, std::min(masks, room - 2 - i)});
  }
  return tree;
}

}  // namespace

Task<DraftPass> draft_pass(Gen g, Stage stage, Read how, int masks, const std::vector<Token>* x,
                           int room, std::vector<DraftToken>* parallel) {
  Candidates candidates;
  for (const DraftToken& t : *parallel) candidates.push_back({t.token});
  const int nodes = std::min(static_cast<int>(parallel->size()), room - 1);
  Pass p = g.catch_up(stage, *x);
  // A pass has one adapter, and conditioned rows of the prompt need theirs.
  const auto is_conditioned = [](const In& in) { return in.kind == In::kEmbed; };
  if (std::ranges::any_of(p.add.in, is_conditioned)) masks = 0;
  const TreeRows rows = add_tree(chain_of(nodes, masks, room), candidates, &p);
  Read predictions = read_masks(rows.masks, 1, how.warp);
  how.rows = rows.nodes;
  how.max_prob = predictions.max_prob = true;
  p.reading(std::move(how));
  if (!rows.masks.empty()) p.reading(std::move(predictions));
  DraftPass done;
  done.rows = static_cast<int>(p.add.size());
  Ticket ticket = g.submit(std::move(p));
  done.ticket = ticket.id();
  Readout r = co_await ticket;
  done.works = ticket.works();

  size_t last = 0;  // of rows.nodes, the last accepted one
  const auto draw = [&] { done.tokens.push_back({r.row[last].token, r.row[last].max_prob}); };
  for (draw(); last < rows.token.size() && rows.token[last] == r.row[last].token; draw()) ++last;
  parallel->clear();
  const int on_last = rows.tree.masks(static_cast<int>(last) - 1);
  for (int i = 0; i < on_last; ++i) {
    const size_t mask = rows.nodes.size() + static_cast<size_t>(rows.group[last] + i);
    if (r.row[mask].top.empty()) break;  // all tokens are banned
    parallel->push_back({r.row[mask].top[0].token, r.row[mask].max_prob});
  }
  if (rows.tree.rows() > 0) {
    std::vector<Row> path;
    for (Row row = 0; row <= rows.nodes[last]; ++row) path.push_back(row);
    g.retain(stage.cache, path);
  }
  co_return done;
}

}  // namespace tandem
