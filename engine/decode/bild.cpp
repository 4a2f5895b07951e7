#include "engine/decode/bild.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/first_token.h"

namespace tandem {
namespace {

// Small tokens that one round has room for. A longer run goes on in further rounds: its tokens are
// host values, and catch_up() feeds them again if its caches were taken meanwhile.
constexpr int kRoundTokens = 32;

// Just under ln 2, by more than fp32 cross-entropies are off.
constexpr float kLn2 = 0.69314F;

struct Run {
  std::vector<Token> y;  // tentative
  bool ends = false;     // the last token would end the request
  bool over = false;     // the request has ended
};

struct Bild {
  Bild(Gen gen, BildParams params)
      : g(gen),
        a(params),
        S(g.stage(Role::kSmall)),
        L(g.stage(Role::kLarge)),
        greedy(g.warp().greedy()),
        unchecked(a.rollback_threshold == std::numeric_limits<float>::infinity() && !a.verify_eos),
        longest(a.window              ? *a.window
                : a.max_small_run > 0 ? a.max_small_run
                                      : std::numeric_limits<int>::max()) {}

  bool falls_back(float max_prob) const { return !a.window && max_prob < a.fallback_threshold; }
  // Equation 3, METHODS 2.5: greedy, large's own choice is exempt.
  bool rolls_back(const Out& large, Token y) const {
    return large.nll > a.rollback_threshold && !(greedy && large.argmax == y);
  }

  Gen g;
  const BildParams a;
  const Stage S, L;
  const bool greedy;
  const bool unchecked;  // nothing is rolled back nor verified: small's tokens are final at once
  const int longest;     // run
};

// Small runs on its own until it is not sure (equation 2), the run is long enough, or its last
// token would end the request.
Task<Run> small_run(Bild b) {
  Gen g = b.g;
  Run run;
  std::vector<Token>& y = run.y;
  const int start = static_cast<int>(g.seq().size());
  for (int length = 0;;) {
    const int tentative = static_cast<int>(y.size());
    const int room = std::min({kRoundTokens, b.longest - length, g.remaining() - tentative});
    // Its last token is not fed to small; nor to large if it is the last one of the request.
    const int fed = std::min(tentative + room, g.remaining() - 1);
    co_await g.round({{b.S, g.missing(b.S) + tentative + room - 1}, {b.L, g.missing(b.L) + fed}});
    if (g.remaining() == 1 && !b.unchecked) co_return run;  // large's pass gives that one
    for (int i = 0; i < room; ++i) {
      Pass p = g.catch_up(b.S, y);
      Read read = g.draw(last_rows(1, p.add.size()));
      read.max_prob = true;
      read.tentative = !b.unchecked;  // large may draw at this position as well
      read.round_start = start;
      p.reading(std::move(read));
      Readout s = co_await g.submit(std::move(p));
      if (b.falls_back(s.row[0].max_prob)) {  // drops the proposal; the row that was fed stays
        ++g.stats().own[BildFigures::kFallbacks];
        co_return run;
      }
      ++length;
      if (b.unchecked) {
        std::vector<Emitted> out{g.emitted(s.row[0], {Source::kSmall, Source::kSmall})};
        run.over = g.emit(std::move(out));
        if (run.over) co_return run;
      } else {
        y.push_back(s.row[0].token);
        run.ends = g.ends(y);
        if (run.ends) co_return run;
      }
    }
    if (length == b.longest) {
      ++g.stats().own[BildFigures::kForcedCalls];
      co_return run;
    }
  }
}

// Large's passes over y_1 .. y_r: `checked` of them get a cross-entropy, and where the run does not
// end the request the last row gives the next token. True: the request has ended.
Task<bool> verify(Bild b, Run run) {
  Gen g = b.g;
  const std::vector<Token>& y = run.y;
  const bool trusts_end = run.ends && !b.a.verify_eos && g.is_end(y.back());
  const size_t checked = y.size() - (trusts_end ? 1 : 0);
  const size_t rows = run.ends ? checked : checked + 1;

  Readout v;
  bool shown = false;
  if (rows > 0) {
    const auto fed = std::span(y).first(rows - 1);
    // Early exit: a row of small's that nobody asks about is not continued.
    g.truncate(b.L.cache, static_cast<int>(g.seq().size() + fed.size()));
    Pass p = g.catch_up(b.L, fed);
    Read read = g.draw(last_rows(rows, p.add.size()));
    read.score.assign(y.begin(), y.begin() + static_cast<ptrdiff_t>(checked));
    shown = read.logprob && checked > 0;
    Read of_small = read;  // large's log-probabilities of small's tokens
    p.reading(std::move(read));
    if (shown) {
      of_small.rows.resize(checked);
      of_small.draw = false;
      of_small.top = 0;
      p.reading(std::move(of_small));
    }
    Readout r = co_await g.submit(std::move(p));
    v = std::move(r);
  }

  size_t m = 0;
  while (m < checked && !b.rolls_back(v.row[m], y[m])) ++m;
  const bool rolled_back = m < checked;
  const size_t kept = rolled_back ? m : y.size();
  if (rolled_back) {
    ++g.stats().own[BildFigures::kRollbacks];
    g.stats().own[BildFigures::kRolledBackTokens] += static_cast<int64_t>(y.size() - m);
  }
  if (!b.unchecked) {
    g.stats().count_verification(static_cast<int64_t>(y.size()), static_cast<int64_t>(kept));
  }

  std::vector<Emitted> out;
  for (size_t i = 0; i < kept; ++i) {
    Emitted& e = out.emplace_back();
    e.token = y[i];
    e.provenance = {Source::kSmall, i < checked ? Source::kLarge : Source::kSmall};
    if (i >= checked) continue;
    if (shown) e.logprob = v.row[rows + i].logprob;
    e.top.assign(v.row[i].top.begin(), v.row[i].top.end());
  }
  if (kept < rows) {  // y_m replaced, or the next token
    out.push_back(g.emitted(v.row[kept], {Source::kLarge, Source::kLarge, rolled_back}));
  }
  co_return g.emit(std::move(out));
}

}  // namespace

bool bild_is_exact(const BildParams& a, bool greedy) {
  const bool all_of_large = !a.window && a.fallback_threshold > 1;
  const bool no_stranger = greedy && a.verify_eos && a.rollback_threshold < kLn2;
  return all_of_large || no_stranger;
}

// Algorithm 1.
Task<void> bild(Gen g, BildParams a) {
  Bild b(g, a);
  std::vector<Stage> beside{b.S};
  bool ended = co_await first_token(g, std::move(beside));
  while (!ended) {
    Run run = co_await small_run(b);
    if (run.over) co_return;
    ended = co_await verify(b, std::move(run));
    if (ended) co_return;
    const int in_step = static_cast<int>(g.seq().size()) - 1;
    g.truncate(b.S.cache, in_step);
    g.truncate(b.L.cache, in_step);
  }
}

}  // namespace tandem
