#include "engine/decode/speculative.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/first_token.h"
#include "engine/decode/judge.h"
#include "engine/decode/payoff.h"

namespace tandem {
namespace {

// Draws from the draft's last row. Greedy drafts are certain: no distribution is kept of them.
Read draft_read(Gen g, const Pass& pass) {
  Read read;
  read.rows = last_rows(1, pass.add.size());
  read.warp = g.warp();
  read.draw = true;
  read.keep = !g.warp().greedy();
  read.round_start = static_cast<int>(g.seq().size());
  return read;
}

// Each draft is fed to the next pass on the device: the host sees none and waits for none.
Drafts chained_drafts(Gen g, Stage D, int gamma) {
  Drafts drafts;
  Pass p = g.catch_up(D);
  for (int i = 0; i < gamma; ++i) {
    p.reading(draft_read(g, p));
    p.share = true;
    const Ticket draft = g.submit(std::move(p));
    drafts.add(draft.chosen(0), g.warp().greedy() ? kOneHot : draft.id());
    p = Pass();
    p.stage = D;
    p.add.chain(draft.chosen(0));
  }
  return drafts;
}

// Stops before the first row of q that is not sure. That looks at the row alone and never at what
// is drawn from it: to drop a token for its own probability would bias the output (METHODS 1).
Task<Drafts> confident_drafts(Gen g, Stage D, int gamma, float min_probability) {
  Drafts drafts;
  std::vector<Token> x;
  while (drafts.size() < gamma && !g.ends(x)) {
    Pass p = g.catch_up(D, x);
    Read read = draft_read(g, p);
    read.max_prob = true;
    p.reading(std::move(read));
    Ticket draft = g.submit(std::move(p));
    const TicketId id = draft.id();
    Readout r = co_await draft;
    if (r.row[0].max_prob < min_probability) break;
    x.push_back(r.row[0].token);
    drafts.add(token_in(x.back()), g.warp().greedy() ? kOneHot : id);
  }
  co_return drafts;
}

}  // namespace

Task<void> speculative(Gen g, SpeculativeParams a) {
  const Stage T = g.stage(Role::kLarge), D = g.stage(Role::kSmall);
  Pace pace(a.draft_tokens, a.adaptive);
  Payoff payoff(a.only_if_faster && g.warp().greedy());
  std::vector<Stage> beside{D};
  bool ended = co_await first_token(g, std::move(beside));
  while (!ended) {
    // The target adds a token of its own, so the last one that is wanted needs no draft.
    const int gamma = payoff.drafts() ? std::min(pace.gamma(), g.remaining() - 1) : 0;
    const double before = g.stats().share_seconds;
    Needs needs{{T, g.missing(T) + gamma}};
    if (gamma > 0) needs.push_back({D, g.missing(D) + gamma - 1});
    co_await g.round(std::move(needs));

    Drafts drafts;
    if (a.min_draft_probability > 0) {
      Drafts confident = co_await confident_drafts(g, D, gamma, a.min_draft_probability);
      drafts = std::move(confident);
    } else {
      drafts = chained_drafts(g, D, gamma);
    }
    const int drafted = drafts.size();
    const Judged judged = co_await judge(g, std::move(drafts), Source::kSmall);
    pace.saw(drafted, judged.accepted);
    payoff.saw(drafted > 0, judged.accepted + 1, g.stats().share_seconds - before);
    ended = judged.ended;
    // One short of it when all drafts stayed.
    if (!ended) g.truncate(D.cache, static_cast<int>(g.seq().size()) - 1);
  }
}

}  // namespace tandem
