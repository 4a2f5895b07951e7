#include "engine/decode/speculative.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/decode/draft_ids.h"
#include "engine/decode/draft_lookup.h"
#include "engine/decode/draft_pass.h"
#include "engine/decode/first_token.h"
#include "engine/decode/pacing/draft_length.h"
#include "engine/decode/pacing/draft_stopping.h"
#include "engine/decode/verification.h"

namespace tandem {
namespace {

// How the small model drafts.
struct Drafter {
  Stage stage;
  bool by_ratio = false;
  float min_probability = 0;
  int masks = 0;   // mask tokens behind each row that draws; 0 if by_ratio
  Warp warp = {};  // of a round

  // Pages for the small model's rows of a round.
  Need need(Gen g, int gamma) const {
    return {stage, g.missing(stage) + gamma - 1 + parallel_draft_rows(masks)};
  }
  // Draws by the large model's race, or independently for the ratio rule.
  Read read(Gen g) const {
    Read read;
    read.warp = warp;
    read.draw = true;
    read.keep = by_ratio;
    read.round_start = static_cast<int>(g.seq().size());
    return read;
  }
};

// A chain of passes. The device feeds each draft to the next pass, so the loop waits for none.
Drafts chained_drafts(Gen g, const Drafter& d, int gamma) {
  Drafts drafts;
  if (gamma == 0) return drafts;  // the round has no pages for the small model
  Pass p = g.catch_up(d.stage);
  for (int i = 0; i < gamma; ++i) {
    Read read = d.read(g);
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

// The drafts of a round, read token by token.
struct DraftRun {
  std::vector<Token> x;
  Drafts drafts;
  std::vector<DraftToken> parallel;  // what may follow x

  int room(int gamma) const { return gamma - drafts.size(); }
  Task<DraftPass> pass(Gen g, const Drafter& d, int gamma) {
    return draft_pass(g, d.stage, d.read(g), d.masks, &x, room(gamma), &parallel);
  }
  // False: the token would end the request.
  bool add(Gen g, Token token, Provenance by, TicketId dist = 0) {
    push(token, by, dist);
    return !g.ends(x);
  }
  void push(Token token, Provenance by, TicketId dist = 0) {
    x.push_back(token);
    drafts.add(token_in(token), dist);
    drafts.by.push_back(by);
  }
  // Keeps the first `n` drafts. REQUIRES: none has a distribution.
  void drop_to(size_t n) {
    x.resize(n);
    drafts.x.resize(n);
    drafts.by.resize(n);
  }
  bool add_parallel(Gen g, size_t i) {
    const Provenance by{Source::kMask, Source::kLarge, false, static_cast<int>(i)};
    return add(g, parallel[i].token, by);
  }
};

// Stops before the first row of q below min_probability. That condition never depends on the drawn
// token: under the ratio rule, dropping a token for its own probability would bias the output
// (docs/architecture.md, deviations). The last parallel tokens are verified, too, as far as they
// reach min_probability.
Task<Drafts> confident_drafts(Gen g, Drafter d, int gamma) {
  DraftRun run;
  while (static_cast<int>(run.parallel.size()) < run.room(gamma)) {
    const DraftPass pass = co_await run.pass(g, d, gamma);
    for (const DraftToken& t : pass.tokens) {
      if (t.probability < d.min_probability) co_return std::move(run.drafts);
      const bool more = run.add(g, t.token, {Source::kSmall}, d.by_ratio ? pass.ticket : 0);
      if (!more) co_return std::move(run.drafts);
    }
  }
  for (size_t i = 0; i < run.parallel.size(); ++i) {
    if (run.parallel[i].probability < d.min_probability) break;
    if (!run.add_parallel(g, i)) break;
  }
  co_return std::move(run.drafts);
}

// Copies while that pays best. False: they end the request, or a constraint bans one.
bool add_lookups(Gen g, DraftStopping* stopping, DraftLookup* lookup, int gamma, DraftRun* run,
                 DraftStopping::Next* next) {
  const size_t before = run->x.size();
  for (;;) {
    *next = DraftStopping::Next::kStop;
    if (run->room(gamma) == 0) break;
    const DraftLookup::Draft draft = lookup->next(run->x);
    const float parallel = run->parallel.empty() ? 0 : run->parallel[0].probability;
    *next = stopping->next(draft.by, parallel);
    if (*next != DraftStopping::Next::kLookup) break;
    run->parallel.clear();
    stopping->add_lookup(draft.by);
    run->push(draft.token, {Source::kNgram});
  }
  if (run->x.size() == before) return true;
  const size_t useful = std::max(before, useful_drafts(g, run->x));
  const bool more = useful == run->x.size() && !g.ends(run->x);
  run->drop_to(useful);
  stopping->drop_to(static_cast<int>(useful));
  return more;
}

// Stops where one more draft does not pay. The first ones are `forced`. Each other one is looked
// up, the small model's, or at the end a parallel token. of_small: as gamma, if the last one is not
// looked up.
Task<Drafts> paying_drafts(Gen g, Drafter d, DraftStopping* stopping, DraftLookup* lookup,
                           int gamma, int of_small, std::vector<Token> forced) {
  DraftRun run;
  for (const Token t : forced) {
    run.push(t, {Source::kGrammar});
    stopping->add_forced();
  }
  for (;;) {
    DraftStopping::Next next = DraftStopping::Next::kStop;
    const bool more = add_lookups(g, stopping, lookup, gamma, &run, &next);
    if (!more) co_return std::move(run.drafts);
    if (next == DraftStopping::Next::kStop) break;
    const DraftPass pass = co_await run.pass(g, d, of_small);
    stopping->observe_pass(pass.rows, pass.works);
    for (const DraftToken& t : pass.tokens) {
      if (!stopping->add_small(t.probability, d.min_probability)) co_return std::move(run.drafts);
      if (!run.add(g, t.token, {Source::kSmall})) co_return std::move(run.drafts);
    }
  }
  for (size_t i = 0; i < run.parallel.size() && run.room(of_small) > 0; ++i) {
    if (!stopping->add_parallel(run.parallel[i].probability, d.min_probability)) break;
    if (!run.add_parallel(g, i)) break;
  }
  co_return std::move(run.drafts);
}

// The pace of a request: how many drafts a round has, and how they are made.
class DraftPolicy {
 public:
  DraftPolicy(Gen g, const SpeculativeParams& a)
      : g_(g),
        most_(a.draft_tokens),
        large_(g.stage(Role::kLarge)),
        small_(drafter_of(g, a)),
        context_(a.draft_context),
        reads_all_(a.reads_prompt_at_once || small_.stage.cache == large_.cache),
        warp_(g.warp(), a.draft_vocabulary.value_or(0), a.drafts_text_ids),
        length_(small_.by_ratio && a.pace == Pace::kFastest ? Pace::kAdaptive : a.pace, most_),
        lookup_(g, kMaxNgram) {
    if (a.pace != Pace::kFastest || small_.by_ratio) return;
    using By = DraftStopping::By;
    stopping_.emplace(most_, a.stats, small_.masks > 0 ? By::kParallel : By::kSmall);
    begin_round();
  }

  // The small model reads the prompt together with the large one.
  bool drafts_at_once() const { return !stopping_ || stopping_->may_draft(); }
  bool drafts_first() const {
    const Stage stages[] = {large_, small_.stage};
    return stopping_ && drafts_can_come_first(g_, stages);
  }
  Stage small() const { return small_.stage; }

  void begin_round() {
    forced_ = g_.forced(std::min(kMostForced, g_.remaining() - 1));
    const auto forced = static_cast<int>(forced_.size());
    if (forced > 0 && !stopping_) {
      gamma_ = forced;
      return;
    }
    // The large model adds a token of its own, so the last token needs no draft.
    gamma_ = std::min(length_.gamma(), g_.remaining() - 1);
    if (stopping_) {
      lookup_.begin_round();
      const int more = std::min(most_, std::max(kShortLookup, lookup_.most()));
      gamma_ = std::min(forced + more, g_.remaining() - 1);
      choose_drafts();
    }
    drafter_ = small_;
    drafter_.warp = warp_.behind(g_.seq());
    if (stopping_ && !stopping_->parallel()) drafter_.masks = 0;
  }
  Needs needs() const {
    Needs needs{{large_, g_.missing(large_) + gamma_}};
    const bool small = gamma_ > 0 && (stopping_ ? stopping_->may_draft() : forced_.empty());
    if (small) needs.push_back(drafter_.need(g_, std::min(gamma_, of_small())));
    return needs;
  }
  Task<Drafts> draft() {
    if (stopping_) {
      const int small = std::min(gamma_, of_small());
      return paying_drafts(g_, drafter_, &*stopping_, &lookup_, gamma_, small, forced_);
    }
    if (!forced_.empty()) return at_once(forced_drafts(forced_));
    if (drafter_.min_probability > 0 || drafter_.masks > 0) {
      return confident_drafts(g_, drafter_, gamma_);
    }
    return at_once(chained_drafts(g_, drafter_, gamma_));
  }
  void end_drafts() {
    if (stopping_) stopping_->end_drafts();
  }
  void end_round(int drafted, int accepted) {
    if (stopping_) {
      stopping_->end_round(accepted);
    } else if (forced_.empty()) {  // else it says nothing about the small model
      length_.observe(drafted, accepted);
    }
  }

 private:
  // Drafts need not be exact, so the small model reads only the end of a long text when it begins,
  // into a cache of its own: rows of the other one are shared with texts that begin alike. It reads
  // the whole answer, which constraints depend on.
  void choose_drafts() {
    const bool empty = small_.stage.first == 0 && g_.rows(small_.stage) == 0;
    if (empty && !cached_) cached_ = g_.cached(small_.stage);
    const int missing = g_.missing(small_.stage) - 1 - (empty ? *cached_ : 0);
    const int end = static_cast<int>(g_.seq().size()) - 1;
    int first = end - context_;
    if (const auto& processors = g_.warp().processors) {
      first = std::min(first, processors->prompt_tokens);
    }
    const bool shortens = empty && !reads_all_ && missing > end - first;
    const int behind = shortens ? end - first : missing;
    stopping_->begin_round({g_.load(large_), g_.load(small_.stage), behind, g_.remaining()});
    if (!shortens || !stopping_->may_draft()) return;
    small_.stage = {g_.fork(small_.stage.cache), small_.stage.to, first};
    warp_.begin_at(first);
  }
  // The last draft of the small model, at most.
  int of_small() const {
    if (!stopping_) return most_;
    return static_cast<int>(forced_.size()) + std::min(most_, DraftStopping::kMostOfSmall);
  }
  static Drafter drafter_of(Gen g, const SpeculativeParams& a) {
    const bool by_ratio = !speculative_is_exact(a, g.warp().greedy());
    return {g.stage(Role::kSmall), by_ratio, a.min_draft_probability,
            by_ratio ? 0 : a.num_masks.value_or(0)};
  }
  static Task<Drafts> at_once(Drafts drafts) { co_return drafts; }

  Gen g_;
  const int most_;
  const Stage large_;
  Drafter small_;
  const int context_;
  const bool reads_all_;       // the whole text
  std::optional<int> cached_;  // rows of the prompt that were in the prefix cache
  DraftWarp warp_;
  DraftLength length_;
  std::optional<DraftStopping> stopping_;  // with Pace::kFastest
  DraftLookup lookup_;                     // for stopping_

  // This round.
  std::vector<Token> forced_;  // by a constraint: the first drafts
  int gamma_ = 0;
  Drafter drafter_;
};

}  // namespace

Task<void> speculative(Gen g, SpeculativeParams a) {
  DraftPolicy policy(g, a);
  std::vector<Stage> others;
  if (a.reads_prompt_at_once || policy.drafts_at_once()) others.push_back(policy.small());
  bool ended = !policy.drafts_first() && co_await first_token(g, std::move(others));
  while (!ended) {
    policy.begin_round();
    co_await g.round(policy.needs());
    Drafts drafts = co_await policy.draft();
    policy.end_drafts();
    const int drafted = drafts.size();
    const Verified verified = co_await verify_drafts(g, std::move(drafts), Source::kSmall);
    policy.end_round(drafted, verified.accepted);
    ended = verified.ended;
    // Rolls back the rejected drafts. If all were accepted, the small model lacks the last one.
    if (!ended) g.drop_last(policy.small());
  }
}

}  // namespace tandem
