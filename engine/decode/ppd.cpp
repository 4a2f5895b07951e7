#include "engine/decode/ppd.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/decode/draft_ids.h"

namespace tandem {
namespace {

// Workers' passes that are waited for, in times of main's upper layers.
constexpr double kPatience = 2, kBarrier = 1.25;

// A sub-process: layers [0, s) on a cache of its own.
struct Worker {
  Worker(Stage s, HeadId h) : stage(s), head(h) {}

  Stage stage;
  HeadId head;                    // reads its rows
  std::optional<Ticket> pass;     // its last one, until somebody asks how it went
  int at = 0;                     // tokens before the candidates
  int before = 0;                 // rows that the pass runs before them
  std::vector<Token> candidates;  // each a row, side by side
  double seconds = 0;             // of its last pass that is known

  // Is it at work on candidates of an earlier round? Then it has no part in this one.
  bool is_late() const { return pass && !pass->await_ready(); }
  // Which of its candidates that token is; -1: none.
  int index_of(Token x) const {
    const auto found = std::ranges::find(candidates, x);
    return found == candidates.end() ? -1 : static_cast<int>(found - candidates.begin());
  }
};

// Ends a pass over candidates: the row of the one that was right stays, the others go.
void settle(Gen g, Worker& w) {
  const auto at = static_cast<size_t>(w.at);
  const int right = at < g.seq().size() ? w.index_of(g.seq()[at]) : -1;
  if (g.rows(w.stage) > w.at) {  // else an eviction has taken them
    RowList path;
    for (Row row = 0; row < w.before; ++row) path.push_back(row);
    if (right >= 0) path.push_back(static_cast<Row>(w.before + right));
    g.retain(w.stage.cache, path);
  }
  if (!w.candidates.empty()) {
    w.seconds = w.pass->seconds();
    g.stats().own[PpdFigures::kWorkerTime] += static_cast<int64_t>(w.seconds * 1e9);
  }
  w.pass.reset();
}

// Charges the time of each phase, from the first token on.
class Phases {
 public:
  explicit Phases(Gen g) : g_(g) {}

  void begin() { at_ = g_.now(); }
  void begin_to_count() { counts_ = true; }
  void end(size_t figure) {
    const TimePoint now = g_.now();
    if (counts_) g_.stats().own[figure] += Duration(now - at_).count();
    at_ = now;
  }

 private:
  Gen g_;
  bool counts_ = false;
  TimePoint at_;
};

// The k best of an early row; where main is going to draw, the first is what this row would draw in
// the same race.
Read early_read(Gen g, const PpdParams& a, HeadId head, RowList rows) {
  Read read;
  read.rows = std::move(rows);
  read.head = head;
  read.warp = g.warp();
  read.warp.vocab = draft_ids(g.warp(), a.draft_vocabulary.value_or(0));
  read.draw = !g.warp().greedy();
  read.top = a.candidates;
  return read;
}

std::vector<Token> candidates_of(const Out& early, const PpdParams& a, bool greedy) {
  std::vector<Token> c;
  if (!greedy) c.push_back(early.token);
  for (const Ranked& r : early.top) {
    if (std::ranges::find(c, r.token) == c.end()) c.push_back(r.token);
  }
  c.resize(std::min(c.size(), static_cast<size_t>(a.candidates)));
  return c;
}

}  // namespace

// Algorithm 1; the steps are those of docs/architecture.md, Algorithms.
Task<void> ppd(Gen g, PpdParams a) {
  const Stage M = g.stage(Role::kLarge), E = g.stage(Role::kSmall);
  std::vector<Worker> workers;
  for (int i = 0; i < a.workers; ++i) {
    const auto n = static_cast<size_t>(i);
    const HeadId head = n < a.worker_heads.size() ? a.worker_heads[n] : kOwnHead;
    workers.emplace_back(g.stage(Role::kWorker, i), head);
  }
  const int s = workers[0].stage.to;
  const bool workers_read = s == E.to;  // the lower half ends where candidates are read
  auto& own = g.stats().own;
  double upper_seconds = 0;       // of main's layers [e, d) for one token
  std::vector<Token> candidates;  // for the token after next, where a worker has read them
  bool matched = false;           // was the last token a candidate?
  CacheId winner;                 // whose rows main has taken over
  Phases phases(g);
  const auto copy_row = [&](CacheId from, int row, CacheId to) {
    own[PpdFigures::kCopiedBytes] += g.copy(from, row, row + 1, to);
    ++own[PpdFigures::kCopiedRows];
  };

  for (;;) {
    const int next = g.remaining() > 1 ? 1 : 0;  // no workers after the last token that is wanted
    Needs needs{{E, g.missing(E) + next}, {M, g.missing(M) + next}};
    needs[0].frontier = 1 + next;
    std::vector<Worker*> team;
    for (Worker& w : workers) {
      if (w.is_late() || next == 0) continue;
      if (w.pass) settle(g, w);
      team.push_back(&w);
    }
    const auto k = static_cast<size_t>(a.candidates);
    const auto share = team.empty() ? 0 : static_cast<int>((k + team.size() - 1) / team.size());
    for (const Worker* w : team) needs.push_back({w->stage, g.missing(w->stage) + share});
    co_await g.round(std::move(needs));
    phases.begin();
    const auto n = static_cast<int>(g.seq().size());
    const bool adopted = g.missing(M) == 1 && g.rows({M.cache, s}) == n;

    // A worker that lacks no more than the last row gets it from who has it; one that lacks more,
    // a prompt's rows, runs them beside main.
    const auto lacks_last = [&](const Worker* w) { return g.missing(w->stage) == 1; };
    for (Worker* w : team) {
      w->candidates.clear();
      if (g.missing(w->stage) > 1) {
        w->at = n;
        w->pass = g.submit(g.catch_up(w->stage));
      } else if (adopted && lacks_last(w)) {
        copy_row(winner, n - 1, w->stage.cache);
      }
    }

    // A, B: layers [0, e), or [s, e) where the lower ones were adopted.
    if (!team.empty() && candidates.empty()) {
      Pass lower = g.catch_up(E);
      lower.reading(early_read(g, a, a.head, last_rows(1, lower.add.size())));
      Readout early = co_await g.submit(std::move(lower));
      candidates = candidates_of(early.row[0], a, g.warp().greedy());
    }
    for (Worker* w : team) {
      if (!lacks_last(w)) continue;
      copy_row(M.cache, n - 1, w->stage.cache);
    }
    phases.end(PpdFigures::kLowerTime);

    // C: main's upper layers, and beside them the lower layers of the next token.
    Pass upper = g.catch_up(M);
    upper.reading(g.draw(last_rows(1, upper.add.size())));
    Ticket main = g.submit(std::move(upper));
    for (size_t i = 0; i < team.size(); ++i) {
      Worker& w = *team[i];
      for (size_t c = i; c < candidates.size(); c += team.size()) {
        w.candidates.push_back(candidates[c]);
      }
      if (w.candidates.empty()) continue;
      Pass p = g.catch_up(w.stage);
      w.at = n;
      w.before = static_cast<int>(p.add.size());
      RowList rows;
      for (const Token c : w.candidates) rows.push_back(p.add.add(token_in(c), w.before - 1));
      if (workers_read) p.reading(early_read(g, a, w.head, std::move(rows)));
      w.pass = g.submit(std::move(p));
      own[PpdFigures::kWorkerLayers] += s * static_cast<int64_t>(w.candidates.size());
    }
    own[PpdFigures::kMainLayers] += M.to - (adopted ? s : 0);
    own[PpdFigures::kPredictedMainLayers] += M.to - (matched ? s : 0);
    own[PpdFigures::kRounds] += team.empty() ? 0 : 1;
    Readout r = co_await main;
    upper_seconds = main.seconds();
    phases.end(PpdFigures::kUpperTime);

    // D: the token is main's own, match or not.
    const Token x = r.row[0].token;
    const auto right = std::ranges::find(candidates, x);
    matched = !team.empty() && right != candidates.end();
    const int rank = matched ? static_cast<int>(right - candidates.begin()) : 0;
    own[PpdFigures::kMatches] += matched;
    own[PpdFigures::kFirstMatches] += matched && rank == 0;
    const Source proposed = matched ? Source::kEarlyHead : Source::kLarge;
    if (g.emit(g.emitted(r.row[0], {proposed, Source::kLarge, false, rank}))) co_return;
    phases.begin_to_count();
    candidates.clear();
    winner = CacheId();
    for (Worker* w : team) {
      const int index = matched ? w->index_of(x) : -1;
      // Main would run the winner's layers in about the time of its upper ones, which are as many;
      // the others are waited for where they are as fast, since they are wanted for the next token.
      const double patience = index >= 0 ? kPatience : kBarrier;
      if (w->candidates.empty() || (w->is_late() && w->seconds > patience * upper_seconds))
        continue;
      Readout ran = co_await *w->pass;
      settle(g, *w);
      if (index < 0) continue;
      if (workers_read) {
        const Out& early = ran.row[static_cast<size_t>(index)];
        candidates = candidates_of(early, a, g.warp().greedy());
      }
      copy_row(w->stage.cache, n, M.cache);
      winner = w->stage.cache;
      ++own[PpdFigures::kAdopted];
    }
    phases.end(PpdFigures::kBarrierTime);
  }
}

}  // namespace tandem
