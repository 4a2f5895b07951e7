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

// The drafts of a request's rounds: tokens that a constraint forces, then what followed the same
// suffix before, up to a token that would end the request or that the constraint bans. Rounds that
// are not paced by time have one kind of drafts.
class Lookups {
 public:
  Lookups(Gen g, const NgramParams& a)
      : g_(g), most_(a.draft_tokens), lookup_(g, a.max_ngram), length_(a.pace, a.draft_tokens) {
    if (a.pace != Pace::kFastest) return;
    stopping_.emplace(most_, a.stats, DraftStopping::By::kLookup);
  }

  // Returns the drafts of the round, at most.
  int begin_round() {
    forced_ = g_.forced(std::min(kMostForced, g_.remaining() - 1));
    const auto forced = static_cast<int>(forced_.size());
    if (forced > 0 && !stopping_) return forced;
    lookup_.begin_round();
    const int most = stopping_ ? std::min(most_, lookup_.most()) : length_.gamma();
    return std::min(forced + most, g_.remaining() - 1);
  }
  Drafts drafts(int most) {
    std::vector<Token> x = stopping_         ? paying(most)
                           : forced_.empty() ? lookup_.copy(most)
                                             : forced_;
    x.resize(useful_drafts(g_, x));
    if (stopping_) stopping_->drop_to(static_cast<int>(x.size()));
    Drafts drafts;
    for (size_t i = 0; i < x.size(); ++i) {
      drafts.x.push_back(token_in(x[i]));
      drafts.by.push_back({i < forced_.size() ? Source::kGrammar : Source::kNgram});
    }
    return drafts;
  }
  bool drafts_first() const {
    const Stage stages[] = {g_.stage(Role::kLarge)};
    return stopping_ && drafts_can_come_first(g_, stages);
  }
  void end_round(int drafted, int accepted) {
    if (stopping_) {
      stopping_->end_round(accepted);
    } else if (forced_.empty()) {
      length_.observe(drafted, accepted);
    }
  }

 private:
  std::vector<Token> paying(int most) {
    stopping_->begin_round({g_.load(g_.stage(Role::kLarge)), {}, 0, g_.remaining()});
    std::vector<Token> x = forced_;
    for (size_t i = 0; i < x.size(); ++i) stopping_->add_forced();
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
  std::vector<Token> forced_;              // of this round
};

}  // namespace

Task<void> ngram(Gen g, NgramParams a) {
  const Stage T = g.stage(Role::kLarge);
  Lookups lookups(g, a);
  bool ended = !lookups.drafts_first() && co_await first_token(g, {});
  while (!ended) {
    const int most = lookups.begin_round();
    co_await g.round({{T, g.missing(T) + most}});
    Drafts drafts = lookups.drafts(most);
    const int drafted = drafts.size();
    const Verified verified = co_await verify_drafts(g, std::move(drafts), Source::kNgram);
    lookups.end_round(drafted, verified.accepted);
    ended = verified.ended;
  }
}

}  // namespace tandem
