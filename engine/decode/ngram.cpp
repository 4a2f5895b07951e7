#include "engine/decode/ngram.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/first_token.h"
#include "engine/decode/judge.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/payoff.h"

namespace tandem {
namespace {

// What followed last time; nothing behind a token that would end the request.
Drafts lookup(Gen g, NgramIndex& ngrams, int gamma) {
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
  Pace pace(a.draft_tokens, a.adaptive);
  Payoff payoff(a.draft_tokens, a.adaptive);
  bool ended = co_await first_token(g, {});
  while (!ended) {
    const int wanted = a.only_if_faster ? payoff.gamma() : pace.gamma();
    const int gamma = std::min(wanted, g.remaining() - 1);
    const double before = g.stats().share_seconds;
    co_await g.round({{T, g.missing(T) + gamma}});
    Drafts drafts = lookup(g, ngrams, gamma);
    const int drafted = drafts.size();
    const Judged judged = co_await judge(g, std::move(drafts), Source::kNgram);
    pace.saw(drafted, judged.accepted);
    payoff.saw(drafted, judged.accepted, g.stats().share_seconds - before);
    ended = judged.ended;
  }
}

}  // namespace tandem
