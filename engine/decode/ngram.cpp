#include "engine/decode/ngram.h"

#include <algorithm>
#include <optional>
#include <span>
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
// end the request or that a constraint bans.
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
      const std::vector<Token> found = index_.propose(g_.seq(), most());
      for (const Token t : std::span(found).first(g_.legal_drafts(found))) {
        if (!add(t)) break;
      }
      return drafts;
    }
    stopping_->begin_round({g_.load(g_.stage(Role::kLarge)), {}, 0, g_.remaining()});
    while (drafts.size() < most()) {
      const NgramIndex::Found found = index_.look_up(g_.seq(), x, 1);
      if (stopping_->next(found.matched) == DraftStopping::Next::kStop) break;
      std::vector<Token> longer = x;
      longer.push_back(found.tokens.front());
      if (g_.legal_drafts(longer) < longer.size()) break;
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
    const std::vector<Token> forced = g.forced(std::min(kMostForced, g.remaining() - 1));
    const int most = forced.empty() ? lookups.most() : static_cast<int>(forced.size());
    co_await g.round({{T, g.missing(T) + most}});
    Drafts drafts = forced.empty() ? lookups.drafts() : forced_drafts(forced);
    const int drafted = drafts.size();
    const Verified verified = co_await verify_drafts(g, std::move(drafts), Source::kNgram);
    if (forced.empty()) lookups.end_round(drafted, verified.accepted);
    ended = verified.ended;
  }
}

}  // namespace tandem
