#include "engine/decode/ngram.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/decode/first_token.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/pacing/draft_length.h"
#include "engine/decode/pacing/draft_stopping.h"
#include "engine/decode/verification.h"

namespace tandem {
namespace {

// The drafts of a request's rounds: what followed the same suffix before, up to a token that would
// end the request.
class Lookups {
 public:
  Lookups(Gen g, const NgramParams& a)
      : g_(g), index_(a.max_ngram), length_(a.pace, a.draft_tokens) {
    if (a.pace != Pace::kFastest) return;
    stopping_.emplace(a.draft_tokens, a.stats, DraftStopping::By::kLookup);
  }

  int most() const { return std::min(length_.gamma(), g_.remaining() - 1); }
  Drafts drafts() {
    Drafts drafts;
    std::vector<Token> x;
    const auto add = [&](Token t) {
      x.push_back(t);
      drafts.x.push_back(token_in(t));
      return !g_.ends(x);
    };
    if (!stopping_) {
      for (const Token t : index_.propose(g_.seq(), most())) {
        if (!add(t)) break;
      }
      return drafts;
    }
    stopping_->begin_round({g_.load(g_.stage(Role::kLarge)), {}, 0, g_.remaining()});
    while (drafts.size() < most()) {
      const NgramIndex::Found found = index_.look_up(g_.seq(), x, 1);
      if (stopping_->next(found.matched) == DraftStopping::Next::kStop) break;
      stopping_->add_lookup(found.matched);
      if (!add(found.tokens.front())) break;
    }
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
  Gen g_;
  NgramIndex index_;
  DraftLength length_;
  std::optional<DraftStopping> stopping_;  // with Pace::kFastest
};

}  // namespace

Task<void> ngram(Gen g, NgramParams a) {
  const Stage T = g.stage(Role::kLarge);
  Lookups lookups(g, a);
  bool ended = co_await first_token(g, {});
  while (!ended) {
    const int most = lookups.most();
    co_await g.round({{T, g.missing(T) + most}});
    Drafts drafts = lookups.drafts();
    const int drafted = drafts.size();
    const Verified verified = co_await verify_drafts(g, std::move(drafts), Source::kNgram);
    lookups.end_round(drafted, verified.accepted);
    ended = verified.ended;
  }
}

}  // namespace tandem
