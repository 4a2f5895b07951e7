#include "engine/decode/bild.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/first_token.h"
#include "engine/decode/masked_draft.h"

namespace tandem {
namespace {

// Small tokens that one round has room for. A longer run goes on in further rounds: its tokens are
// host values, and catch_up() feeds them again if its caches were taken meanwhile.
constexpr int kRoundTokens = 32;

// Just under ln 2, by more than fp32 cross-entropies are off.
constexpr float kLn2 = 0.69314F;

// Policies 1 and 2 of the paper, and the deviations in docs/architecture.md.
struct Policy : BildParams {
  Policy(const BildParams& params, bool is_greedy) : BildParams(params), greedy(is_greedy) {}

  // Equation 2.
  bool falls_back(const Proposal& small) const {
    return !window && small.probability < fallback_threshold;
  }
  // Equation 3. Greedy, large's own choice is exempt (docs/architecture.md, deviations).
  bool rolls_back(const Out& large, Token y) const {
    return large.nll > rollback_threshold && !(greedy && large.argmax == y);
  }
  // Nothing is rolled back nor verified: small's tokens are final at once.
  bool trusts_small() const {
    return rollback_threshold == std::numeric_limits<float>::infinity() && !verify_eos;
  }

  int masks() const { return num_masks.value_or(0); }

  bool greedy;
};

// y_1 .. y_r, and why there are no more.
struct Run {
  std::vector<Token> y;  // tentative
  int length = 0;        // small tokens, those included that were final at once
  bool fell_back = false;
  bool ends = false;   // y_r would end the request
  bool ended = false;  // it has: small's tokens were final at once
  bool over() const { return fell_back || ends || ended; }
};

Emitted small_token(Token y, Source confirmed) {
  Emitted e;
  e.token = y;
  e.provenance = {Source::kSmall, confirmed};
  return e;
}

// What large thinks of a small token; nobody else's probabilities are told.
void tell_logprobs(const Out& large, Emitted* e) {
  e->logprob = large.score_logprob;
  e->top.assign(large.top.begin(), large.top.end());
}

// Room for the next tokens of the run. Small is not fed its last one; nor is large, if that is the
// last one of the request. Early exit: what was fed since large's last pass lies between the two.
Needs room_for(Gen g, const Run& run, int room, int masks) {
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  const auto tentative = static_cast<int>(run.y.size());
  Need small{S, g.missing(S) + tentative + room - 1 + masked_draft_rows(masks)};
  small.frontier = run.length + room + 1;
  return {small, {L, g.missing(L) + std::min(tentative + room, g.remaining() - 1)}};
}

// Tokens of a run that its round still has room for.
int room_of(Gen g, const Run& run, int longest) {
  const int begun = run.length % kRoundTokens;
  return std::min(
      {kRoundTokens - begun, longest - run.length, g.remaining() - static_cast<int>(run.y.size())});
}

// Small on its own: until it is not sure, its run is long enough, or would end the request.
Task<Run> small_run(Gen g, Policy policy) {
  const Stage S = g.stage(Role::kSmall);
  const int longest = longest_small_run(policy);
  const auto start = static_cast<int>(g.seq().size());
  Run run;
  std::vector<Proposal> guesses;  // by masks, behind y
  while (!run.over() && run.length < longest) {
    const int room = room_of(g, run, longest);
    if (run.length % kRoundTokens == 0) co_await g.round(room_for(g, run, room, policy.masks()));
    if (g.remaining() == 1 && !policy.trusts_small()) co_return run;  // large's pass gives that one
    Read propose = g.draw({});
    propose.tentative = !policy.trusts_small();  // large may draw at this position as well
    propose.round_start = start;
    const DraftPass small =
        co_await draft_pass(g, S, std::move(propose), policy.masks(), &run.y, room, &guesses);

    for (const Proposal& proposed : small.said) {
      if (run.over()) break;
      run.fell_back = policy.falls_back(proposed);  // the proposal goes; the row that was fed stays
      if (run.fell_back) break;
      ++run.length;
      if (policy.trusts_small()) {
        run.ended = g.emit(small_token(proposed.token, Source::kSmall));
      } else {
        run.y.push_back(proposed.token);
        run.ends = g.ends(run.y);
      }
    }
  }
  g.stats().own[BildFigures::kFallbacks] += run.fell_back;
  g.stats().own[BildFigures::kForcedCalls] += !run.over();
  co_return run;
}

// Large's pass over y: p(y_1) .. p(y_checked), and in each row what large would say itself; where
// the run does not end the request, one row more gives the next token.
Pass verification(Gen g, const std::vector<Token>& y, size_t checked, size_t rows) {
  const Stage L = g.stage(Role::kLarge);
  const auto fed = std::span(y).first(rows - 1);
  // Early exit: a row of small's that nobody asks about is not continued.
  g.truncate(L.cache, static_cast<int>(g.seq().size() + fed.size()));
  Pass p = g.catch_up(L, fed);
  Read read = g.draw(last_rows(rows, p.add.size()));
  read.score.assign(y.begin(), y.begin() + static_cast<std::ptrdiff_t>(checked));
  p.reading(std::move(read));
  return p;
}

// Large on y: the first y_m that it rolls back is replaced by its own, and what follows is dropped;
// if there is none, its next token follows. True: the request has ended.
Task<bool> verify(Gen g, Policy policy, Run run) {
  const std::vector<Token>& y = run.y;
  const bool trusts_end = run.ends && !policy.verify_eos && g.is_end(y.back());
  const size_t checked = y.size() - (trusts_end ? 1 : 0);
  const size_t rows = run.ends ? checked : checked + 1;
  Readout large;
  if (rows > 0) {
    Readout r = co_await g.submit(verification(g, y, checked, rows));
    large = std::move(r);
  }

  size_t m = 0;
  while (m < checked && !policy.rolls_back(large.row[m], y[m])) ++m;
  const bool rolled_back = m < checked;
  const size_t kept = rolled_back ? m : y.size();
  g.stats().own[BildFigures::kRollbacks] += rolled_back;
  g.stats().own[BildFigures::kRolledBackTokens] += static_cast<int64_t>(y.size() - kept);
  g.stats().count_verification(static_cast<int64_t>(y.size()), static_cast<int64_t>(kept));

  std::vector<Emitted> out;
  for (size_t i = 0; i < kept; ++i) {
    out.push_back(small_token(y[i], i < checked ? Source::kLarge : Source::kSmall));
    if (i < checked) tell_logprobs(large.row[i], &out.back());
  }
  if (kept < rows) {
    out.push_back(g.emitted(large.row[kept], {Source::kLarge, Source::kLarge, rolled_back}));
  }
  co_return g.emit(std::move(out));
}

}  // namespace

bool bild_is_exact(const BildParams& a, bool greedy) {
  const bool all_of_large = !a.window && a.fallback_threshold > 1;
  const bool no_stranger = greedy && a.verify_eos && a.rollback_threshold < kLn2;
  return all_of_large || no_stranger;
}

int longest_small_run(const BildParams& a) {
  if (a.window) return *a.window;
  return a.max_small_run > 0 ? std::min(a.max_small_run, kLongestRun) : kLongestRun;
}

// Algorithm 1.
Task<void> bild(Gen g, BildParams a) {
  const Policy policy(a, g.warp().greedy());
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  std::vector<Stage> beside{S};
  bool ended = co_await first_token(g, std::move(beside));
  while (!ended) {
    Run run = co_await small_run(g, policy);
    if (run.ended) co_return;
    ended = co_await verify(g, policy, std::move(run));
    if (ended) co_return;
    const int in_step = static_cast<int>(g.seq().size()) - 1;
    g.truncate(S.cache, in_step);
    g.truncate(L.cache, in_step);
  }
}

}  // namespace tandem
