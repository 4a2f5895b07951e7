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

// How long main waits for a worker's pass, in times of main's upper layers: for the worker with the
// right candidate, whose layers main would run in about the time of its upper ones, and for others.
constexpr double kWaitForMatch = 2, kWaitForOthers = 1.25;

// A sub-process: layers [0, s) on its own cache.
struct Worker {
  Worker(Stage s, HeadId h) : stage(s), head(h) {}

  Stage stage;
  HeadId head;                    // reads its rows
  std::optional<Ticket> pass;     // the last one, until commit()
  int at = 0;                     // tokens before the candidates
  int before = 0;                 // rows of the pass before the candidates
  std::vector<Token> candidates;  // siblings, a row each
  double seconds = 0;             // of the last finished pass

  // It still runs candidates of an earlier round, and takes no part in this one.
  bool is_late() const { return pass && !pass->await_ready(); }
  int index_of(Token x) const {  // -1: no candidate
    const auto found = std::ranges::find(candidates, x);
    return found == candidates.end() ? -1 : static_cast<int>(found - candidates.begin());
  }
};

// Charges the time of each phase, from the first token on.
class PhaseTimer {
 public:
  explicit PhaseTimer(Gen g) : g_(g) {}

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

// Algorithm 1 by phases; the steps are those of docs/architecture.md, Algorithms.
class Ppd {
 public:
  Ppd(Gen g, PpdParams a)
      : g_(g),
        a_(std::move(a)),
        main_(g.stage(Role::kLarge)),
        early_(g.stage(Role::kSmall)),
        timer_(g) {
    for (int i = 0; i < a_.workers; ++i) {
      const auto n = static_cast<size_t>(i);
      const HeadId head = n < a_.worker_heads.size() ? a_.worker_heads[n] : kOwnHead;
      workers_.emplace_back(g.stage(Role::kWorker, i), head);
    }
    lower_ = workers_[0].stage.to;
  }

  Needs begin_round();
  void catch_up_workers();
  Task<void> run_lower_layers();                        // A, B
  Ticket start_upper_layers();                          // C, main
  void start_workers();                                 // C, workers
  bool commit(const Out& token, double upper_seconds);  // the token is main's, match or not
  Task<void> adopt_winner();                            // D

 private:
  auto& own() { return g_.stats().own; }
  bool lacks_last_row(const Worker& w) const { return g_.missing(w.stage) == 1; }
  bool workers_read() const { return lower_ == early_.to; }
  void copy_row(CacheId from, int row, CacheId to);
  Read read_early(HeadId head, RowList rows) const;
  std::vector<Token> candidates_of(const Out& early) const;
  void end_pass(Worker& w);

  Gen g_;
  const PpdParams a_;
  const Stage main_, early_;
  int lower_;  // s: workers run layers [0, s)
  std::vector<Worker> workers_;
  PhaseTimer timer_;

  // From the previous round.
  std::vector<Token> candidates_;  // for the next token, if a worker has read them
  bool matched_ = false;           // the last token was a candidate
  CacheId winner_;                 // the worker's cache whose rows main adopted
  double upper_seconds_ = 0;       // of main's layers [e, d) for one token

  // This round.
  std::vector<Worker*> team_;
  int tokens_ = 0;
  Token token_ = -1;
  bool adopted_ = false;  // main begins with an adopted row
};

void Ppd::copy_row(CacheId from, int row, CacheId to) {
  own()[PpdFigures::kCopiedBytes] += g_.copy(from, row, row + 1, to);
  ++own()[PpdFigures::kCopiedRows];
}

// The k best tokens of an early row. If main samples, the first candidate is the token that this
// row draws in the same race.
Read Ppd::read_early(HeadId head, RowList rows) const {
  Read read;
  read.rows = std::move(rows);
  read.head = head;
  read.warp = g_.warp();
  read.warp.vocab = draft_ids(g_.warp(), a_.draft_vocabulary.value_or(0));
  read.draw = !g_.warp().greedy();
  read.top = a_.candidates;
  return read;
}

std::vector<Token> Ppd::candidates_of(const Out& early) const {
  std::vector<Token> c;
  if (!g_.warp().greedy()) c.push_back(early.token);
  for (const Ranked& r : early.top) {
    if (std::ranges::find(c, r.token) == c.end()) c.push_back(r.token);
  }
  if (c.empty()) c.push_back(early.argmax);  // a constraint leaves no token
  c.resize(std::min(c.size(), static_cast<size_t>(a_.candidates)));
  return c;
}

// Ends a pass over candidates: retains the row of the right one and drops the others.
void Ppd::end_pass(Worker& w) {
  const auto at = static_cast<size_t>(w.at);
  const int right = at < g_.seq().size() ? w.index_of(g_.seq()[at]) : -1;
  if (g_.rows(w.stage) > w.at) {  // else they were preempted
    RowList path;
    for (Row row = 0; row < w.before; ++row) path.push_back(row);
    if (right >= 0) path.push_back(static_cast<Row>(w.before + right));
    g_.retain(w.stage.cache, path);
  }
  if (!w.candidates.empty()) {
    w.seconds = w.pass->seconds();
    own()[PpdFigures::kWorkerTime] += static_cast<int64_t>(w.seconds * 1e9);
  }
  w.pass.reset();
}

// Chooses the workers of the round. Returns the pages that it needs.
Needs Ppd::begin_round() {
  const int next = g_.remaining() > 1 ? 1 : 0;  // the last token has no candidates behind it
  Needs needs{{early_, g_.missing(early_) + next}, {main_, g_.missing(main_) + next}};
  needs[0].frontier = 1 + next;
  team_.clear();
  for (Worker& w : workers_) {
    if (w.is_late() || next == 0) continue;
    if (w.pass) end_pass(w);
    team_.push_back(&w);
  }
  const auto k = static_cast<size_t>(a_.candidates);
  const auto share = team_.empty() ? 0 : static_cast<int>((k + team_.size() - 1) / team_.size());
  for (const Worker* w : team_) needs.push_back({w->stage, g_.missing(w->stage) + share});
  return needs;
}

// A worker that lacks only the last row gets it by a copy, from the winner here or from main later.
// One that lacks more, such as the prompt, computes it.
void Ppd::catch_up_workers() {
  timer_.begin();
  tokens_ = static_cast<int>(g_.seq().size());
  adopted_ = g_.missing(main_) == 1 && g_.rows({main_.cache, lower_}) == tokens_;
  for (Worker* w : team_) {
    w->candidates.clear();
    if (g_.missing(w->stage) > 1) {
      w->at = tokens_;
      w->pass = g_.submit(g_.catch_up(w->stage));
    } else if (adopted_ && lacks_last_row(*w)) {
      copy_row(winner_, tokens_ - 1, w->stage.cache);
    }
  }
}

// Layers [0, e), or [s, e) if the lower ones were adopted, unless a worker has read the candidates.
Task<void> Ppd::run_lower_layers() {
  if (!team_.empty() && candidates_.empty()) {
    Pass lower = g_.catch_up(early_);
    lower.reading(read_early(a_.head, last_rows(1, lower.add.size())));
    Readout early = co_await g_.submit(std::move(lower));
    candidates_ = candidates_of(early.row[0]);
  }
  for (Worker* w : team_) {
    if (lacks_last_row(*w)) copy_row(main_.cache, tokens_ - 1, w->stage.cache);
  }
  timer_.end(PpdFigures::kLowerTime);
}

Ticket Ppd::start_upper_layers() {
  Pass upper = g_.catch_up(main_);
  upper.reading(g_.draw(last_rows(1, upper.add.size())));
  own()[PpdFigures::kMainLayers] += main_.to - (adopted_ ? lower_ : 0);
  own()[PpdFigures::kPredictedMainLayers] += main_.to - (matched_ ? lower_ : 0);
  own()[PpdFigures::kRounds] += team_.empty() ? 0 : 1;
  return g_.submit(std::move(upper));
}

void Ppd::start_workers() {
  for (size_t i = 0; i < team_.size(); ++i) {
    Worker& w = *team_[i];
    for (size_t c = i; c < candidates_.size(); c += team_.size()) {
      w.candidates.push_back(candidates_[c]);
    }
    if (w.candidates.empty()) continue;
    Pass p = g_.catch_up(w.stage);
    w.at = tokens_;
    w.before = static_cast<int>(p.add.size());
    RowList rows;
    for (const Token c : w.candidates) rows.push_back(p.add.add(token_in(c), w.before - 1));
    if (workers_read()) p.reading(read_early(w.head, std::move(rows)));
    w.pass = g_.submit(std::move(p));
    own()[PpdFigures::kWorkerLayers] += lower_ * static_cast<int64_t>(w.candidates.size());
  }
}

bool Ppd::commit(const Out& token, double upper_seconds) {
  upper_seconds_ = upper_seconds;
  timer_.end(PpdFigures::kUpperTime);
  token_ = token.token;
  const auto right = std::ranges::find(candidates_, token_);
  matched_ = !team_.empty() && right != candidates_.end();
  const int rank = matched_ ? static_cast<int>(right - candidates_.begin()) : 0;
  own()[PpdFigures::kMatches] += matched_;
  own()[PpdFigures::kFirstMatches] += matched_ && rank == 0;
  const Source proposed = matched_ ? Source::kEarlyHead : Source::kLarge;
  return g_.emit(g_.emitted(token, {proposed, Source::kLarge, false, rank}));
}

// The barrier. Main adopts the rows of the right candidate. Other workers are waited for while they
// are as fast as main, since the next round needs them.
Task<void> Ppd::adopt_winner() {
  timer_.begin_to_count();
  candidates_.clear();
  winner_ = CacheId();
  for (Worker* w : team_) {
    const int index = matched_ ? w->index_of(token_) : -1;
    const double wait = index >= 0 ? kWaitForMatch : kWaitForOthers;
    const bool too_late = w->is_late() && w->seconds > wait * upper_seconds_;
    if (w->candidates.empty() || too_late) continue;
    Readout ran = co_await *w->pass;
    end_pass(*w);
    if (index < 0) continue;
    if (workers_read()) candidates_ = candidates_of(ran.row[static_cast<size_t>(index)]);
    copy_row(w->stage.cache, tokens_, main_.cache);
    winner_ = w->stage.cache;
    ++own()[PpdFigures::kAdopted];
  }
  timer_.end(PpdFigures::kBarrierTime);
}

}  // namespace

Task<void> ppd(Gen g, PpdParams a) {
  Ppd process(g, std::move(a));
  for (;;) {
    co_await g.round(process.begin_round());
    process.catch_up_workers();
    co_await process.run_lower_layers();
    Ticket upper = process.start_upper_layers();
    process.start_workers();
    Readout r = co_await upper;
    if (process.commit(r.row[0], upper.seconds())) co_return;
    co_await process.adopt_winner();
  }
}

}  // namespace tandem
