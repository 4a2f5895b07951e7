#include "engine/decode/speculative.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/draft_ids.h"
#include "engine/decode/first_token.h"
#include "engine/decode/judge.h"
#include "engine/decode/masked_draft.h"
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
  int masks = 0;  // that hang on each row that draws; none where by_ratio
};

// Draws from the draft's rows: by the target's own race, or for the ratio rule apart from it.
Read draft_read(Gen g, const Draft& d) {
  Read read;
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
    Read read = draft_read(g, d);
    read.rows = last_rows(1, p.add.size());
    p.reading(std::move(read));
    p.share = true;
    const Ticket draft = g.submit(std::move(p));
    drafts.add(draft.chosen(0), d.by_ratio ? draft.id() : 0);
    p = Pass();
    p.stage = d.stage;
    p.add.chain(draft.chosen(0));
  }
  return drafts;
}

// Drafts of a round as they come.
struct Run {
  std::vector<Token> x;
  Drafts drafts;
  std::vector<Proposal> guesses;  // of what comes behind x

  int room(int gamma) const { return gamma - drafts.size(); }
  Task<DraftPass> pass(Gen g, const Draft& d, int gamma) {
    return draft_pass(g, d.stage, draft_read(g, d), d.masks, &x, room(gamma), &guesses);
  }
  // False: nothing may come behind it.
  bool add(Gen g, Token token, Provenance by, TicketId dist = 0) {
    x.push_back(token);
    drafts.add(token_in(token), dist);
    drafts.by.push_back(by);
    return !g.ends(x);
  }
};

// What a mask guessed and nobody said.
Provenance by_mask(size_t i) { return {Source::kMask, Source::kLarge, false, static_cast<int>(i)}; }

// Stops before the first row of q that is not sure. That looks at the row alone and never at what
// is drawn from it: under the ratio rule, to drop a token for its own probability would bias the
// output (docs/architecture.md, deviations). What masks still guess then is judged too, as far as
// they are sure.
Task<Drafts> awaited_drafts(Gen g, Draft d, int gamma) {
  Run run;
  while (static_cast<int>(run.guesses.size()) < run.room(gamma)) {
    const DraftPass pass = co_await run.pass(g, d, gamma);
    for (const Proposal& said : pass.said) {
      if (said.probability < d.min_probability) co_return std::move(run.drafts);
      const bool on = run.add(g, said.token, {Source::kSmall}, d.by_ratio ? pass.ticket : 0);
      if (!on) co_return std::move(run.drafts);
    }
  }
  for (size_t i = 0; i < run.guesses.size(); ++i) {
    if (run.guesses[i].probability < d.min_probability) break;
    if (!run.add(g, run.guesses[i].token, by_mask(i))) break;
  }
  co_return std::move(run.drafts);
}

Task<Drafts> drafts_of(Gen g, Draft d, int gamma) {
  if (d.min_probability <= 0 && d.masks == 0) co_return chained_drafts(g, d, gamma);
  Drafts drafts = co_await awaited_drafts(g, d, gamma);
  co_return drafts;
}

Need room_for(Gen g, const Draft& d, int gamma) {
  return {d.stage, g.missing(d.stage) + gamma - 1 + masked_draft_rows(d.masks)};
}

// Each draft as long as it pays: looked up, what the small model says, or at last what its masks
// guess.
Task<Drafts> paying_drafts(Gen g, Draft d, Steering* steering, NgramIndex* ngrams, int gamma) {
  Run run;
  while (run.room(gamma) > 0) {
    const NgramIndex::Found found = ngrams->look_up(g.seq(), run.x, 1);
    const int rows = g.missing(d.stage) + static_cast<int>(run.x.size());
    const float guess = run.guesses.empty() ? 0 : run.guesses[0].probability;
    const Steering::Next next = steering->next(found.matched, rows, guess);
    if (next == Steering::Next::kStop) break;
    if (next == Steering::Next::kLookup) {
      run.guesses.clear();
      steering->looked_up(found.matched);
      if (!run.add(g, found.tokens.front(), {Source::kNgram})) co_return std::move(run.drafts);
      continue;
    }
    const double before = g.stats().share_seconds;
    const DraftPass pass = co_await run.pass(g, d, gamma);
    steering->passed(rows, g.stats().share_seconds - before);
    for (const Proposal& said : pass.said) {
      if (!steering->drafted(said.probability, d.min_probability)) co_return std::move(run.drafts);
      if (!run.add(g, said.token, {Source::kSmall})) co_return std::move(run.drafts);
    }
  }
  for (size_t i = 0; i < run.guesses.size() && run.room(gamma) > 0; ++i) {
    if (!steering->guessed(run.guesses[i].probability, d.min_probability)) break;
    if (!run.add(g, run.guesses[i].token, by_mask(i))) break;
  }
  co_return std::move(run.drafts);
}

// Drafts as far as they pay, exact ones. Alone each is decided on by itself. In company requests
// keep step with each other, for their passes to share batches: then a round has a number of drafts
// that is set before it.
Task<void> steered(Gen g, Draft draft, SpeculativeParams a) {
  const Stage T = g.stage(Role::kLarge), D = draft.stage;
  Steering steering(a.draft_tokens, a.lore, draft.masks > 0);
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
    Draft made = draft;
    if (!alone) made.masks = 0;  // whose rows are dear in full batches
    const bool small = gamma > 0 && (!alone || steering.may_draft());
    if (small) needs.push_back(room_for(g, made, gamma));
    co_await g.round(std::move(needs));

    Drafts drafts;
    if (alone) {
      Drafts paying = co_await paying_drafts(g, made, &steering, &ngrams, gamma);
      drafts = std::move(paying);
    } else {
      Drafts sure = co_await drafts_of(g, made, gamma);
      drafts = std::move(sure);
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
                    draft_ids(g.warp(), a.draft_vocabulary.value_or(0)),
                    by_ratio ? 0 : a.num_masks.value_or(0)};
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
    if (gamma > 0) needs.push_back(room_for(g, draft, gamma));
    co_await g.round(std::move(needs));

    Drafts drafts = co_await drafts_of(g, draft, gamma);
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
