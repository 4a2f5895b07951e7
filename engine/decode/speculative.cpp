#include "engine/decode/speculative.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/base/planted.h"
#include "engine/decode/first_token.h"
#include "engine/decode/ngram.h"

namespace tandem {
namespace {

// x_1 .. x_gamma, and the distributions q_1 .. q_gamma that they were drawn from.
struct Drafts {
  std::vector<In> x;
  DistRef q;

  int size() const { return static_cast<int>(x.size()); }
  void add(In token, TicketId dist) {
    x.push_back(token);
    if (x.size() == 1) {
      q.ticket = dist;
    } else if (dist != kOneHot) {
      q.more.push_back(dist);
    }
  }
};

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

// What followed last time; nothing behind a token that would end the request.
Drafts ngram_drafts(Gen g, NgramIndex& ngrams, int gamma) {
  Drafts drafts;
  std::vector<Token> x;
  for (const Token t : ngrams.propose(g.seq(), gamma)) {
    if (g.ends(x)) break;
    x.push_back(t);
    drafts.add(token_in(t), kOneHot);
  }
  return drafts;
}

// gamma that follows the accept lengths: one more than their exponential moving average.
class Pace {
 public:
  explicit Pace(SpeculativeParams a)
      : most_(a.draft_tokens), adaptive_(a.adaptive), mean_(static_cast<double>(most_) - 1) {}

  int gamma() const {
    if (!adaptive_) return most_;
    return std::clamp(1 + static_cast<int>(std::lround(mean_)), 1, most_);
  }
  void saw(int drafted, int accepted) {
    // A run that something else cut short, and that was good as far as it went, tells nothing.
    if (accepted == drafted && drafted < gamma()) return;
    mean_ += SpeculativeParams::kPaceWeight * (accepted - mean_);
  }

 private:
  const int most_;
  const bool adaptive_;
  double mean_;
};

}  // namespace

Task<void> speculative(Gen g, SpeculativeParams a) {
  const bool by_model = a.draft == SpeculativeParams::Draft::kModel;
  const Source drafter = by_model ? Source::kSmall : Source::kNgram;
  const Stage T = g.stage(Role::kLarge), D = by_model ? g.stage(Role::kSmall) : Stage();
  NgramIndex ngrams(a.max_ngram);
  Pace pace(a);
  std::vector<Stage> beside;
  if (by_model) beside.push_back(D);
  const bool at_once = co_await first_token(g, std::move(beside));
  if (at_once) co_return;
  for (;;) {
    // The target adds a token of its own, so the last one that is wanted needs no draft.
    const int gamma = std::min(pace.gamma(), g.remaining() - 1);
    Needs needs{{T, g.missing(T) + gamma}};
    if (by_model && gamma > 0) needs.push_back({D, g.missing(D) + gamma - 1});
    co_await g.round(std::move(needs));

    Drafts drafts;
    if (!by_model) {
      drafts = ngram_drafts(g, ngrams, gamma);
    } else if (a.min_draft_probability > 0) {
      Drafts confident = co_await confident_drafts(g, D, gamma, a.min_draft_probability);
      drafts = std::move(confident);
    } else {
      drafts = chained_drafts(g, D, gamma);
    }

    // p_1 .. p_{gamma+1} in one pass. The accept rule runs on the device (sampling/accept.h):
    // x_i stays with probability min(1, p_i(x_i) / q_i(x_i)); in place of the first that does not,
    // a draw from norm(max(0, p_i - q_i)); after the last, a draw from p_{gamma+1}.
    Pass judge = g.catch_up(T);
    for (const In& x : drafts.x) judge.add.chain(x);
    Read read = g.draw(last_rows(drafts.x.size() + 1, judge.add.size()));
    read.against = drafts.q;
    read.round_start = static_cast<int>(g.seq().size());
    judge.reading(std::move(read));
    Readout r = co_await g.submit(std::move(judge));

    std::vector<Emitted> out;
    for (int i = 0; i < r.accepted; ++i) {
      out.push_back(g.emitted(r.row[static_cast<size_t>(i)], {drafter, Source::kLarge}));
    }
    const bool rejected = r.accepted < drafts.size();
    out.push_back(g.emitted(r.row[static_cast<size_t>(r.accepted)],
                            {Source::kLarge, Source::kLarge, rejected}));
    if (planted(Bug::kCommitRejected) && rejected) {
      out.back().token = r.row[static_cast<size_t>(r.accepted) + 1].argmax;
    }
    g.stats().count_verification(drafts.size(), r.accepted);
    pace.saw(drafts.size(), r.accepted);
    if (g.emit(std::move(out))) co_return;
    const int in_step = static_cast<int>(g.seq().size()) - 1;
    g.truncate(T.cache, in_step);
    if (by_model) g.truncate(D.cache, in_step);  // one short of it when all drafts stayed
  }
}

}  // namespace tandem
