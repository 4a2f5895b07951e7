#include "engine/decode/bild.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/draft_ids.h"
#include "engine/decode/draft_pass.h"
#include "engine/decode/first_token.h"

namespace tandem {
namespace {

// Small tokens that one round reserves pages for. A longer run continues in further rounds. Its
// tokens are host values, and catch_up() recomputes their rows after a preemption.
constexpr int kRoundTokens = 32;

// Below ln 2 by more than the error of fp32 cross-entropies.
constexpr float kLn2 = 0.69314F;

// Policies 1 and 2 of the paper, with the additions of docs/decoding_methods.md.
struct Policy : BildParams {
  Policy(const BildParams& params, bool is_greedy) : BildParams(params), greedy(is_greedy) {}

  // Equation 2.
  bool falls_back(const DraftToken& small) const {
    return !window && small.probability < fallback_threshold;
  }
  // Equation 3. When greedy, the large model's own choice is exempt (docs/architecture.md,
  // deviations).
  bool rolls_back(const Out& large, Token y) const {
    return large.nll > rollback_threshold && !(greedy && large.argmax == y);
  }
  // Without rollback and verification, small tokens are final at once.
  bool trusts_small() const {
    return rollback_threshold == std::numeric_limits<float>::infinity() && !verify_eos;
  }

  int masks() const { return num_masks.value_or(0); }

  bool greedy;
};

// A run of small tokens y_1 .. y_r, and why it stopped.
struct SmallRun {
  std::vector<Token> y;  // tentative
  int length = 0;        // small tokens, including those that were final at once
  bool fell_back = false;
  bool ends = false;   // y_r would end the request
  bool ended = false;  // a token that was final at once ended the request
  bool over() const { return fell_back || ends || ended; }
};

Emitted small_token(Token y, Source confirmed) {
  Emitted e;
  e.token = y;
  e.provenance = {Source::kSmall, confirmed};
  return e;
}

// Log-probabilities of a small token are those of the large model.
void set_logprobs(const Out& large, Emitted* e) {
  e->logprob = large.score_logprob;
  e->top.assign(large.top.begin(), large.top.end());
}

// Pages for the next tokens of the run. The small model does not run its last token, nor does the
// large one if that is the last of the request. Early exit: the small rows since the large model's
// last pass lie between the two stages.
Needs needs_of(Gen g, const SmallRun& run, int room, int masks) {
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  const auto tentative = static_cast<int>(run.y.size());
  Need small{S, g.missing(S) + tentative + room - 1 + parallel_draft_rows(masks)};
  small.frontier = run.length + room + 1;
  return {small, {L, g.missing(L) + std::min(tentative + room, g.remaining() - 1)}};
}

// Tokens of the run that its round still has pages for.
int room_of(Gen g, const SmallRun& run, int longest) {
  const int begun = run.length % kRoundTokens;
  return std::min(
      {kRoundTokens - begun, longest - run.length, g.remaining() - static_cast<int>(run.y.size())});
}

// The small model drafts until it falls back, reaches max_small_run, or would end the request.
// warp: of its draws
Task<SmallRun> small_run(Gen g, Policy policy, Warp warp) {
  const Stage S = g.stage(Role::kSmall);
  int longest = longest_small_run(policy);
  // The large model draws the last token.
  if (!policy.trusts_small()) longest = std::min(longest, g.remaining() - 1);
  const auto start = static_cast<int>(g.seq().size());
  SmallRun run;
  if (longest == 0) {
    co_await g.round(needs_of(g, run, 0, 0));
    co_return run;
  }
  std::vector<DraftToken> parallel;  // by masks, behind y
  while (!run.over() && run.length < longest) {
    const int room = room_of(g, run, longest);
    if (run.length % kRoundTokens == 0) co_await g.round(needs_of(g, run, room, policy.masks()));
    Read propose;  // without log-probabilities: those of a token are the large model's
    propose.warp = warp;
    propose.draw = true;
    propose.tentative = !policy.trusts_small();  // the large model may draw here, too
    propose.round_start = start;
    const DraftPass small =
        co_await draft_pass(g, S, std::move(propose), policy.masks(), &run.y, room, &parallel);

    for (const DraftToken& proposed : small.tokens) {
      if (run.over()) break;
      run.fell_back = policy.falls_back(proposed);  // drops the proposal; its row stays
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
  g.stats().own[BildFigures::kForcedCalls] +=
      !run.over() && run.length == longest_small_run(policy);
  co_return run;
}

// The large model's pass over y: p(y_1) .. p(y_checked), and each row's own draw. If the run does
// not end the request, one more row draws the next token.
Pass verification(Gen g, const std::vector<Token>& y, size_t checked, size_t rows) {
  const Stage L = g.stage(Role::kLarge);
  const auto input = std::span(y).first(rows - 1);
  // Early exit: small rows beyond the input are not continued.
  g.truncate(L.cache, static_cast<int>(g.seq().size() + input.size()));
  Pass p = g.catch_up(L, input);
  Read read = g.draw(last_rows(rows, p.add.size()));
  read.score.assign(y.begin(), y.begin() + static_cast<std::ptrdiff_t>(checked));
  p.reading(std::move(read));
  return p;
}

// Rolls back from the first violation y_m on and replaces it by the large model's token. Without a
// violation, appends the large model's next token. Returns whether the request has ended.
Task<bool> verify(Gen g, Policy policy, SmallRun run) {
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
  const size_t accepted = rolled_back ? m : y.size();
  g.stats().own[BildFigures::kRollbacks] += rolled_back;
  g.stats().own[BildFigures::kRolledBackTokens] += static_cast<int64_t>(y.size() - accepted);
  g.count_verification(static_cast<int64_t>(y.size()), static_cast<int64_t>(accepted));

  std::vector<Emitted> out;
  for (size_t i = 0; i < accepted; ++i) {
    out.push_back(small_token(y[i], i < checked ? Source::kLarge : Source::kSmall));
    if (i < checked) set_logprobs(large.row[i], &out.back());
  }
  if (accepted < rows) {
    out.push_back(g.emitted(large.row[accepted], {Source::kLarge, Source::kLarge, rolled_back}));
  }
  co_return g.emit(std::move(out));
}

}  // namespace

bool bild_is_exact(const BildParams& a, bool greedy) {
  const bool all_of_large = !a.window && a.fallback_threshold > 1;
  const bool only_argmax = greedy && a.verify_eos && a.rollback_threshold < kLn2;
  return all_of_large || only_argmax;
}

int longest_small_run(const BildParams& a) {
  if (a.window) return *a.window;
  return a.max_small_run > 0 ? std::min(a.max_small_run, kLongestRun) : kLongestRun;
}

// Algorithm 1.
Task<void> bild(Gen g, BildParams a) {
  const Policy policy(a, g.warp().greedy());
  // Where the output is exact, the small model's confidence decides about no token.
  const bool limited = bild_is_exact(a, policy.greedy);
  DraftWarp warp(g.warp(), limited ? a.draft_vocabulary : 0, a.drafts_text_ids);
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  std::vector<Stage> others{S};
  bool ended = co_await first_token(g, std::move(others));
  while (!ended) {
    SmallRun run = co_await small_run(g, policy, warp.behind(g.seq()));
    if (run.ended) co_return;
    ended = co_await verify(g, policy, std::move(run));
    if (ended) co_return;
    const int in_step = static_cast<int>(g.seq().size()) - 1;
    g.truncate(S.cache, in_step);
    g.truncate(L.cache, in_step);
  }
}

}  // namespace tandem
