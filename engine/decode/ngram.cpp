#include "engine/decode/ngram.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/first_token.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/pacing/draft_length.h"
#include "engine/decode/verification.h"

namespace tandem {
namespace {

// What followed the same suffix before, up to a token that would end the request.
Drafts look_up(Gen g, NgramIndex& ngrams, int gamma) {
  Drafts drafts;
  std::vector<Token> x;
  for (const Token t : ngrams.propose(g.seq(), gamma)) {
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
    const int gamma = std::min(length.gamma(), g.remaining() - 1);
    const double before = g.stats().share_seconds;
    co_await g.round({{T, g.missing(T) + gamma}});
    Drafts drafts = look_up(g, ngrams, gamma);
    const int drafted = drafts.size();
    const Verified verified = co_await verify_drafts(g, std::move(drafts), Source::kNgram);
    length.observe(drafted, verified.accepted, g.stats().share_seconds - before);
    ended = verified.ended;
  }
}

}  // namespace tandem
