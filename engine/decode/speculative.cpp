#include "engine/decode/speculative.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/draft_ids.h"
#include "engine/decode/first_token.h"
#include "engine/decode/judge.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/payoff.h"
#include "engine/decode/steering.h"

namespace tandem {
namespace {

// How the drafts of a request are made.
struct Draft {
  Stage stage;
  bool by_ratio = false;
  float min_probability = 0;
  int vocab = 0;  // Warp::vocab
};

// Draws from the draft's last row: by the target's own race, or for the ratio rule apart from it.
Read draft_read(Gen g, const Draft& d, const Pass& pass) {
  Read read;
  read.rows = last_rows(1, pass.add.size());
  read.warp = g.warp();
  read.warp.vocab = d.vocab;
  read.draw = true;
  read.keep = d.by_ratio;
  read.round_start = static_cast<int>(g.seq().size());
  return read;
}

// Each draft is fed to the next pass by its device, where all of them lie in line: the loop neither
// sees one nor waits for one.
Drafts chained_drafts(Gen g, Draft d, int gamma) {
  Drafts drafts;
  if (gamma == 0) return drafts;  // there is no room on it in this round
  Pass p = g.catch_up(d.stage);
  for (int i = 0; i < gamma; ++i) {
    p.reading(draft_read(g, d, p));
    p.share = true;
    const Ticket draft = g.submit(std::move(p));
    drafts.add(draft.chosen(0), d.by_ratio ? draft.id() : 0);
    p = Pass();
    p.stage = d.stage;
    p.add.chain(draft.chosen(0));
  }
  return drafts;
}

// Stops before the first row of q that is not sure. That looks at the row alone and never at what
// is drawn from it: under the ratio rule, to drop a token for its own probability would bias the
// output (METHODS 1).
Task<Drafts> confident_drafts(Gen g, Draft d, int gamma) {
  Drafts drafts;
  std::vector<Token> x;
  while (drafts.size() < gamma && !g.ends(x)) {
    Pass p = g.catch_up(d.stage, x);
    Read read = draft_read(g, d, p);
    read.max_prob = true;
    p.reading(std::move(read));
    Ticket draft = g.submit(std::move(p));
    const TicketId id = draft.id();
    Readout r = co_await draft;
    if (r.row[0].max_prob < d.min_probability) break;
    x.push_back(r.row[0].token);
    drafts.add(token_in(x.back()), d.by_ratio ? id : 0);
  }
  co_return drafts;
}

// Each draft as long as it pays, looked up or the small model's.
Task<Drafts> paying_drafts(Gen g, Draft d, Steering* steering, NgramIndex* ngrams, int gamma) {
  Drafts drafts;
  std::vector<Token> x;
  while (drafts.size() < gamma && !g.ends(x)) {
    const NgramIndex::Found found = ngrams->look_up(g.seq(), x, 1);
    const int rows = g.missing(d.stage) + static_cast<int>(x.size());
    const Steering::Next next = steering->next(found.matched, rows);
    if (next == Steering::Next::kStop) break;
    if (next == Steering::Next::kLookup) {
      steering->looked_up(found.matched);
      x.push_back(found.tokens.front());
      drafts.by.push_back(Source::kNgram);
    } else {
      const double before = g.stats().share_seconds;
      Pass p = g.catch_up(d.stage, x);
      Read read = draft_read(g, d, p);
      read.max_prob = true;
      p.reading(std::move(read));
      Readout r = co_await g.submit(std::move(p));
      const float sure = r.row[0].max_prob;
      const double seconds = g.stats().share_seconds - before;
      if (!steering->drafted(sure, rows, seconds, d.min_probability)) break;
      x.push_back(r.row[0].token);
      drafts.by.push_back(Source::kSmall);
    }
    drafts.add(token_in(x.back()), 0);
  }
  co_return drafts;
}

// Drafts as far as they pay, exact ones. Alone each is decided on by itself. In company requests
// keep step with each other, for their passes to share batches: then a round has a number of drafts
// that is set before it.
Task<void> steered(Gen g, Draft draft, SpeculativeParams a) {
  const Stage T = g.stage(Role::kLarge), D = draft.stage;
  Steering steering(a.draft_tokens, a.lore);
  Payoff payoff(a.draft_tokens, /*adaptive=*/true);
  NgramIndex ngrams(kMaxNgram);
  std::vector<Stage> beside;
  steering.begin();
  if (steering.may_draft()) beside.push_back(D);
  bool ended = co_await first_token(g, std::move(beside));
  while (!ended) {
    const bool alone = steering.alone();
    if (alone) steering.begin();
    const int gamma = std::min(alone ? a.draft_tokens : payoff.gamma(), g.remaining() - 1);
    const double start = g.stats().share_seconds;
    const int behind = g.missing(D);
    Needs needs{{T, g.missing(T) + gamma}};
    const bool small = gamma > 0 && (!alone || steering.may_draft());
    if (small) needs.push_back({D, g.missing(D) + gamma - 1});
    co_await g.round(std::move(needs));

    Drafts drafts;
    if (alone) {
      Drafts paying = co_await paying_drafts(g, draft, &steering, &ngrams, gamma);
      drafts = std::move(paying);
    } else if (draft.min_probability > 0) {
      Drafts sure = co_await confident_drafts(g, draft, gamma);
      drafts = std::move(sure);
    } else {
      drafts = chained_drafts(g, draft, gamma);
    }
    const int drafted = drafts.size(), rows = g.missing(T) + drafted;
    const double before = g.stats().share_seconds;
    const Judged judged = co_await judge(g, std::move(drafts), Source::kSmall);
    const double after = g.stats().share_seconds;
    if (alone) {
      steering.judged(judged.accepted, rows, after - before);
    } else {
      payoff.saw(drafted, judged.accepted, after - start, behind);
    }
    ended = judged.ended;
    if (!ended) g.truncate(D.cache, static_cast<int>(g.seq().size()) - 1);
  }
}

}  // namespace

Task<void> speculative(Gen g, SpeculativeParams a) {
  const Stage T = g.stage(Role::kLarge), D = g.stage(Role::kSmall);
  const bool by_ratio = !speculative_is_exact(a, g.warp().greedy());
  Pace pace(a.draft_tokens, a.adaptive);
  const Draft draft{D, by_ratio, a.min_draft_probability,
                    draft_ids(g.warp(), a.draft_vocabulary.value_or(0))};
  const bool paid = a.only_if_faster && !by_ratio;
  if (paid && a.adaptive) {
    co_await steered(g, draft, std::move(a));
    co_return;
  }
  Payoff payoff(a.draft_tokens, a.adaptive);
  std::vector<Stage> beside{D};
  bool ended = co_await first_token(g, std::move(beside));
  while (!ended) {
    // The target adds a token of its own, so the last one that is wanted needs no draft.
    const int gamma = std::min(paid ? payoff.gamma() : pace.gamma(), g.remaining() - 1);
    const double before = g.stats().share_seconds;
    const int behind = g.missing(D);
    Needs needs{{T, g.missing(T) + gamma}};
    if (gamma > 0) needs.push_back({D, g.missing(D) + gamma - 1});
    co_await g.round(std::move(needs));

    Drafts drafts;
    if (a.min_draft_probability > 0) {
      Drafts sure = co_await confident_drafts(g, draft, gamma);
      drafts = std::move(sure);
    } else {
      drafts = chained_drafts(g, draft, gamma);
    }
    const int drafted = drafts.size();
    const Judged judged = co_await judge(g, std::move(drafts), Source::kSmall);
    pace.saw(drafted, judged.accepted);
    payoff.saw(drafted, judged.accepted, g.stats().share_seconds - before, behind);
    ended = judged.ended;
    // One short of it when all drafts stayed.
    if (!ended) g.truncate(D.cache, static_cast<int>(g.seq().size()) - 1);
  }
}

}  // namespace tandem
