#include "engine/decode/ngram.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/decode/draft_lookup.h"
#include "engine/decode/first_token.h"
#include "engine/decode/pacing/draft_length.h"
#include "engine/decode/pacing/draft_stopping.h"
#include "engine/decode/verification.h"

namespace tandem {
namespace {

// The drafts of a request's rounds: what followed the same suffix before, up to a token that would
// end the request or that a constraint bans.
class Lookups {
 public:
  Lookups(Gen g, const NgramParams& a)
      : g_(g), most_(a.draft_tokens), lookup_(g, a.max_ngram), length_(a.pace, a.draft_tokens) {
    if (a.pace != Pace::kFastest) return;
    stopping_.emplace(most_, a.stats, DraftStopping::By::kLookup);
  }

  // Returns the drafts of the round, at most.
  int begin_round() {
    lookup_.begin_round();
    const int most = stopping_ ? std::min(most_, lookup_.most()) : length_.gamma();
    return std::min(most, g_.remaining() - 1);
  }
  Drafts drafts(int most) {
    std::vector<Token> x = stopping_ ? paying(most) : lookup_.copy(most);
    x.resize(useful_drafts(g_, x));
    if (stopping_) stopping_->drop_to(static_cast<int>(x.size()));
    Drafts drafts;
    for (const Token t : x) drafts.x.push_back(token_in(t));
    return drafts;
  }
  void end_round(int drafted, int accepted) {
    if (stopping_) {
      stopping_->end_round(accepted);
    } else {
      length_.observe(drafted, accepted);
    }
  }

 private:
  std::vector<Token> paying(int most) {
    stopping_->begin_round({g_.load(g_.stage(Role::kLarge)), {}, 0, g_.remaining()});
    std::vector<Token> x;
    while (static_cast<int>(x.size()) < most) {
      const DraftLookup::Draft draft = lookup_.next(x);
      if (stopping_->next(draft.by) == DraftStopping::Next::kStop) break;
      stopping_->add_lookup(draft.by);
      x.push_back(draft.token);
    }
    return x;
  }

  Gen g_;
  const int most_;
  DraftLookup lookup_;
  DraftLength length_;
  std::optional<DraftStopping> stopping_;  // with Pace::kFastest
};

}  // namespace

Task<void> ngram(Gen g, NgramParams a) {
  const Stage T = g.stage(Role::kLarge);
  Lookups lookups(g, a);
  bool ended = co_await first_token(g, {});
  while (!ended) {
    const std::vector<Token> forced = g.forced(std::min(kMostForced, g.remaining() - 1));
    const int most = forced.empty() ? lookups.begin_round() : static_cast<int>(forced.size());
    co_await g.round({{T, g.missing(T) + most}});
    Drafts drafts = forced.empty() ? lookups.drafts(most) : forced_drafts(forced);
    const int drafted = drafts.size();
    const Verified verified = co_await verify_drafts(g, std::move(drafts), Source::kNgram);
    if (forced.empty()) lookups.end_round(drafted, verified.accepted);
    ended = verified.ended;
  }
}

}  // namespace tandem
