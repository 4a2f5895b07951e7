#include "engine/decode/ngram.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/first_token.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/pacing/draft_length.h"
#include "engine/decode/verification.h"

namespace tandem {
namespace {

// What followed the same suffix before, up to a token that would end the request or that a
// constraint bans.
Drafts look_up(Gen g, NgramIndex& ngrams, int gamma) {
  Drafts drafts;
  std::vector<Token> x;
  const std::vector<Token> found = ngrams.propose(g.seq(), gamma);
  for (const Token t : std::span(found).first(g.legal_drafts(found))) {
    if (g.ends(x)) break;
    x.push_back(t);
    drafts.x.push_back(token_in(t));
  }
  return drafts;
}

}  // namespace

Task<void> ngram(Gen g, NgramParams a) {
  const Stage T = g.stage(Role::kLarge);
  NgramIndex ngrams(a.max_ngram);
  DraftLength length(a.pace, a.draft_tokens);
  bool ended = co_await first_token(g, {});
  while (!ended) {
    const std::vector<Token> forced = g.forced(std::min(kMostForced, g.remaining() - 1));
    const int gamma = forced.empty() ? std::min(length.gamma(), g.remaining() - 1)
                                     : static_cast<int>(forced.size());
    const double before = g.stats().share_seconds;
    co_await g.round({{T, g.missing(T) + gamma}});
    Drafts drafts = forced.empty() ? look_up(g, ngrams, gamma) : forced_drafts(forced);
    const int drafted = drafts.size();
    const Verified verified = co_await verify_drafts(g, std::move(drafts), Source::kNgram);
    if (forced.empty()) {
      length.observe(drafted, verified.accepted, g.stats().share_seconds - before);
    }
    ended = verified.ended;
  }
}

}  // namespace tandem
