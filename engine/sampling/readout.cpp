#include "engine/sampling/readout.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/mutation.h"
#include "engine/base/status.h"
#include "engine/pass/constraint.h"
#include "engine/pass/rows.h"
#include "engine/sampling/accept.h"
#include "engine/sampling/lanes.h"
#include "engine/sampling/race.h"
#include "engine/sampling/random.h"

namespace tandem {

using sampling::Purpose;

namespace {

bool wants_warped(const Read& read) {
  return read.draw || read.judges() || read.keep ||
         (read.logprob && !read.raw_logprob && (read.top > 0 || !read.score.empty()));
}

// Of a draw by a read that does not judge.
Purpose purpose_of(const Read& read, const Pass& pass) {
  const bool draft = mutated(Mutation::kIndependentDrafts) && pass.share;
  return read.keep || read.tentative || draft ? Purpose::kDraft : Purpose::kToken;
}

sampling::RaceKey key_of(const Work& work, const Read& read, Purpose purpose, int position) {
  return sampling::race_key(read.warp.seed, read.warp.choice, purpose,
                            work.pass->stage.first + position, read.round_start);
}

}  // namespace

RowAnswer answer_row(std::span<float> row, const RowQuestion& q, const RowChanges& changes) {
  RowAnswer a;
  sampling::apply_changes(q, changes, row);
  const sampling::Scan scan = sampling::scan(row);
  a.valid = scan.valid ? 1 : 0;
  if (!scan.valid) return a;
  a.max = scan.max;
  a.argmax = scan.argmax;
  sampling::Scratch scratch;
  std::vector<Token> best;
  sampling::top_n(row, q.top, scratch, best);
  for (size_t i = 0; i < best.size(); ++i) {
    a.top[i] = best[i];
    a.top_logit[i] = row[static_cast<size_t>(best[i])];
  }
  if (q.scored >= 0) a.scored = row[static_cast<size_t>(q.scored)];
  if (q.sums != 0) {
    a.log_sum = sampling::row_sum(
        row.size(), [&](size_t i) { return sampling::exp_nonpositive(row[i] - scan.max); });
  }
  if (q.inverse_temperature > 0) {
    const sampling::Cuts cuts{q.inverse_temperature, q.top_k, q.top_p, q.min_reach};
    const sampling::Warped warped = sampling::warp(cuts, row, scan, scratch);
    a.total = warped.total;
    a.cut = warped.cut;
    a.cut_id = warped.cut_id;
    a.drawn = sampling::race(scratch.weight, {q.key[0], q.key[1]});
    if (a.drawn >= 0) a.drawn_logit = row[static_cast<size_t>(a.drawn)];
  }
  return a;
}

void RowReader::begin(const Work& work) {
  work_ = &work;
  rejected_ = false;
  legal_.reset();
  counting_ = false;
  readout_ = Readout();
  readout_.row.reserve(work.outputs.size());
  top_end_.clear();
  size_t ranked = 0;
  for (const Work::Output& o : work.outputs) {
    ranked += static_cast<size_t>(work.pass->read[static_cast<size_t>(o.read)].top);
  }
  readout_.ranked.reserve(ranked);
}

absl::Status RowReader::fail(const Work::Output& output, int position,
                             absl::string_view what) const {
  return absl::InternalError(absl::StrCat("pass ", work_->ticket, ", read ", output.read, ", row ",
                                          output.index, " (position ", position, "): ", what));
}

absl::Status RowReader::read(const Work::Output& output, std::span<float> logits, int position,
                             Token next_input) {
  const Read& read = work_->pass->read[static_cast<size_t>(output.read)];
  const Warp& warp = read.warp;
  if (left_out(read)) return absl::OkStatus();
  ids_ = sampling::DrawnIds(warp, logits.size());
  if (read.judges() && !ids_.more().empty()) {
    return fail(output, position, "single ids of a read that judges");
  }
  logits = logits.first(ids_.end());
  const bool wants_raw = read.logprob && read.raw_logprob;
  bool dead_end = false;
  const Processors* const processors = warp.processors.get();
  if (processors != nullptr) {
    if (wants_raw) raw_.assign(logits.begin(), logits.end());
    if (processors->counts_tokens()) {
      TANDEM_RETURN_IF_ERROR(count(*processors, output, position));
    }
    sampling::apply_processors(*processors, history().counts(), position, logits);
    if (processors->constraint && sampling::is_constrained(history().counts())) {
      TokenConstraint& constraint = *processors->constraint;
      const std::shared_ptr<const LegalTokens> legal =
          legal_ ? *std::move(legal_) : constraint.after(history().counts().output());
      legal_.reset();
      ids_.clear_others(logits);
      const auto ends = ids_.more().empty() ? constraint.ends() : std::span<const Token>();
      const bool left = sampling::apply_constraint(legal.get(), ends, logits);
      dead_end = !left && !read.draw && !read.judges();  // no candidate of a beam
    }
  }
  logits = ids_.shorten(logits);
  std::span<const float> raw = logits;
  if (processors != nullptr && wants_raw) raw = ids_.shorten(raw_);
  const sampling::Scan scan = sampling::scan(logits);
  if (!scan.valid) {
    return fail(output, position, "NaN or +Inf among the logits, or nothing but -Inf");
  }
  Out& out = readout_.row.emplace_back();
  out.argmax = ids_.id(scan.argmax);

  const bool greedy = warp.greedy();
  double log_sum = 0;  // of exp(logit - max), unwarped
  if (read.max_prob || !read.score.empty() || (greedy && read.logprob && !wants_raw)) {
    log_sum = sampling::log_normalizer(logits, scan.max);
  }
  if (read.max_prob) out.max_prob = static_cast<float>(std::exp(-log_sum));
  Token scored = -1;
  if (static_cast<size_t>(output.index) < read.score.size()) {
    scored = read.score[static_cast<size_t>(output.index)];
    const Token column = ids_.column(scored);
    if (column < 0) {
      return fail(output, position,
                  absl::StrCat("score of token ", scored, "; vocabulary ", logits.size()));
    }
    const double above = double{scan.max} - logits[static_cast<size_t>(column)];
    out.nll = static_cast<float>(log_sum + above);
  }

  if (!greedy && wants_warped(read)) {
    warped_ = sampling::warp(warp, logits, scan, scratch_);
  }
  float raw_max = 0;
  double raw_log_sum = 0;
  if (wants_raw) {
    // Processors preserve NaN, so `raw` has none here.
    raw_max = warp.processors ? sampling::scan(raw).max : scan.max;
    raw_log_sum = sampling::log_normalizer(raw, raw_max);
  }
  const auto logprob = [&](Token t) {
    const Token column = ids_.column(t);
    const auto i = static_cast<size_t>(column);
    if (wants_raw) return static_cast<float>(double{raw[i]} - raw_max - raw_log_sum);
    const float logit = logits[i];
    return greedy ? static_cast<float>(double{logit} - scan.max - log_sum)
                  : warped_.logprob(column, logit);
  };

  if (read.top > 0 && !dead_end) {
    sampling::top_n(logits, read.top, scratch_, best_);
    for (const Token column : best_) {
      const Token t = ids_.id(column);
      readout_.ranked.push_back({t, read.logprob ? logprob(t) : kUnset});
    }
  }
  top_end_.push_back(readout_.ranked.size());

  if (read.keep) {
    Distribution probs(logits.size());
    if (greedy) {
      probs[static_cast<size_t>(scan.argmax)] = 1;  // a column
    } else {
      sampling::normalize(scratch_.weight, warped_.total, probs);
    }
    ids_.spread(&probs);
    store_->put_dist(work_->ticket, output.out, std::move(probs));
  }

  if (read.judges()) {
    TANDEM_RETURN_IF_ERROR(verify(read, output, position, next_input, out));
  } else if (read.draw) {
    out.token = draw(read, purpose_of(read, *work_->pass), position, out.argmax);
    prepare_next(read, out.token);
  }
  const Token shown = out.token >= 0 ? out.token : scored;
  if (read.logprob && shown >= 0) out.logprob = logprob(shown);
  if (read.logprob && scored >= 0) out.score_logprob = logprob(scored);
  return absl::OkStatus();
}

absl::Status RowReader::prepare(const Work& work, std::span<const int32_t> positions) {
  constexpr int kMost = 24;  // fewer than a constraint retains
  begin(work);
  int prepared = 0;
  for (const Work::Output& output : work.outputs) {
    const Processors* const processors =
        work.pass->read[static_cast<size_t>(output.read)].warp.processors.get();
    if (processors == nullptr || !processors->constraint) continue;
    if (++prepared > kMost) break;
    TANDEM_RETURN_IF_ERROR(
        count(*processors, output, positions[static_cast<size_t>(output.run_row)]));
    if (!sampling::is_constrained(history().counts())) continue;
    const std::span<const Token> answer = history().counts().output();
    processors->constraint->prepare({answer.begin(), answer.end()});
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RowReader::must_wait(const Work::Output& output, int position) {
  legal_.reset();
  const Read& read = work_->pass->read[static_cast<size_t>(output.read)];
  const Processors* const processors = read.warp.processors.get();
  if (processors == nullptr || !processors->constraint) return false;
  if (read.judges() && rejected_) return false;
  TANDEM_RETURN_IF_ERROR(count(*processors, output, position));
  if (!sampling::is_constrained(history().counts())) return false;
  legal_ = processors->constraint->soon(history().counts().output());
  return !legal_.has_value();
}

// Reads that follow a rejected draft are skipped.
bool RowReader::left_out(const Read& read) {
  if (!read.judges() || !rejected_) return false;
  skip();
  return true;
}

bool RowReader::needs_argmax_alone(const Read& read) {
  const Warp& warp = read.warp;
  return warp.greedy() && warp.processors == nullptr && warp.more_ids == nullptr && read.top == 0 &&
         !read.max_prob && !read.logprob && !read.keep && read.score.empty() &&
         !read.against.valid();
}

bool RowReader::can_ask(const Read& read) {
  const Warp& warp = read.warp;
  if (read.keep || read.top > kAnsweredTop || warp.more_ids) return false;
  if (const Processors* const processors = warp.processors.get()) {
    if (processors->constraint || (read.logprob && read.raw_logprob)) return false;
  }
  if (warp.greedy() || !wants_warped(read)) return true;
  return warp.typical_p >= 1 && (read.match || !read.against.valid());
}

absl::StatusOr<RowQuestion> RowReader::ask(const Work::Output& output, int position, int vocab,
                                           const CachedOf& cached_of, Questions& all) {
  RowQuestion q = question(*work_, output, position, vocab);
  const Read& read = work_->pass->read[static_cast<size_t>(output.read)];
  const Processors* const processors = read.warp.processors.get();
  if (processors == nullptr) return q;
  q.first_draft = static_cast<int32_t>(all.drafts.size());
  if (processors->counts_tokens()) {
    cached_of_ = cached_of ? &cached_of : nullptr;
    const absl::Status counted = count(*processors, output, position);
    cached_of_ = nullptr;
    TANDEM_RETURN_IF_ERROR(counted);
    const auto add = [&](Token t) {
      if (t <= kDraft) all.drafts.push_back(drafts_[static_cast<size_t>(kDraft - t)]);
    };
    const int before = std::max(0, work_->past - history().known());  // of later_
    for (int i = 0; i < before; ++i) add(later_[static_cast<size_t>(i)]);
    for (const int row : path_) add(run_tokens_[static_cast<size_t>(row)]);
  }
  q.drafts = static_cast<int32_t>(all.drafts.size()) - q.first_draft;
  if (q.drafts > kMostRowDrafts) return absl::UnimplementedError("too many unknown drafts");
  q.first_change = static_cast<int32_t>(all.changes.size());
  sampling::changes_of(*processors, history().counts(), position, q, all.changes);
  q.changes = static_cast<int32_t>(all.changes.size()) - q.first_change;
  return q;
}

RowQuestion RowReader::question(const Work& work, const Work::Output& output, int position,
                                int vocab) {
  const Read& read = work.pass->read[static_cast<size_t>(output.read)];
  const Warp& warp = read.warp;
  RowQuestion q;
  q.vocab = warp.vocab > 0 ? std::min(vocab, warp.vocab) : vocab;
  q.top = read.top;
  if (static_cast<size_t>(output.index) < read.score.size()) {
    const Token scored = read.score[static_cast<size_t>(output.index)];
    q.scored = scored < q.vocab ? std::max(scored, -1) : -1;  // read() refuses others
  }
  const bool greedy = warp.greedy();
  const bool sums =
      read.max_prob || !read.score.empty() || (read.logprob && (greedy || read.raw_logprob));
  q.sums = sums ? 1 : 0;
  if (greedy || !wants_warped(read)) return q;
  const sampling::Cuts cuts = sampling::cuts_of(warp);
  q.inverse_temperature = cuts.inverse_temperature;
  q.top_k = cuts.top_k < q.vocab ? cuts.top_k : 0;
  q.top_p = cuts.top_p;
  q.min_reach = cuts.min_reach;
  const Purpose purpose = read.judges() ? Purpose::kToken : purpose_of(read, *work.pass);
  const sampling::RaceKey key = key_of(work, read, purpose, position);
  std::copy(key.begin(), key.end(), q.key);
  return q;
}

absl::Status RowReader::read(const Work::Output& output, const RowAnswer& a, int position,
                             int vocab, Token next_input) {
  const Read& read = work_->pass->read[static_cast<size_t>(output.read)];
  if (left_out(read)) return absl::OkStatus();
  if (a.valid == 0) {
    return fail(output, position, "NaN or +Inf among the logits, or nothing but -Inf");
  }
  const RowQuestion q = question(*work_, output, position, vocab);
  Out& out = readout_.row.emplace_back();
  out.argmax = a.argmax;
  const double log_sum = q.sums != 0 ? std::log(a.log_sum) : 0;
  if (read.max_prob) out.max_prob = static_cast<float>(std::exp(-log_sum));
  const bool scores = static_cast<size_t>(output.index) < read.score.size();
  if (scores && q.scored < 0) {
    return fail(output, position,
                absl::StrCat("score of token ", read.score[static_cast<size_t>(output.index)],
                             "; vocabulary ", q.vocab));
  }
  if (scores) out.nll = static_cast<float>(log_sum + (double{a.max} - a.scored));

  const bool greedy = read.warp.greedy();
  sampling::Warped warped;
  warped.max = a.max;
  warped.inverse_temperature = q.inverse_temperature;
  warped.total = a.total;
  warped.cut = a.cut;
  warped.cut_id = a.cut_id;
  const auto logprob = [&](Token t, float logit) {
    return greedy || read.raw_logprob ? static_cast<float>(double{logit} - a.max - log_sum)
                                      : warped.logprob(t, logit);
  };
  for (int i = 0; i < std::min(q.top, q.vocab); ++i) {
    readout_.ranked.push_back(
        {a.top[i], read.logprob ? logprob(a.top[i], a.top_logit[i]) : kUnset});
  }
  top_end_.push_back(readout_.ranked.size());

  const Token own = greedy ? a.argmax : a.drawn;
  if (read.judges()) {
    const bool bonus = static_cast<size_t>(output.index) + 1 == read.rows.size();
    if (!bonus && next_input < 0) {
      return fail(output, position, "no draft after this row to accept or reject");
    }
    const sampling::Verdict verdict = sampling::judge_match(own, next_input);
    conclude(bonus, verdict.accepted, verdict.token, next_input, out);
  } else if (read.draw) {
    out.token = own;
  }
  if (!read.logprob) return absl::OkStatus();
  // The logprob is that of the token drawn here, also after a rejection.
  if (out.token >= 0) {
    out.logprob = logprob(out.token, greedy ? a.max : a.drawn_logit);
  } else if (scores) {
    out.logprob = logprob(q.scored, a.scored);
  }
  if (scores) out.score_logprob = logprob(q.scored, a.scored);
  return absl::OkStatus();
}

void RowReader::skip() {
  readout_.row.emplace_back();
  top_end_.push_back(readout_.ranked.size());
}

// Makes the counts those of the output's row: the past, its ancestors among the run rows, itself.
absl::Status RowReader::count(const Processors& processors, const Work::Output& output,
                              int position) {
  if (!counting_ || history().counts().prompt_tokens() != processors.prompt_tokens) {
    TANDEM_RETURN_IF_ERROR(begin_counts(processors.prompt_tokens));
  }
  TokenCounts& counts = history().counts();
  // Parents precede their children. So what remains of the last path behind the current row is on
  // another branch.
  climbed_.clear();
  for (int j = output.run_row;; j = parent_run_row(*work_, j)) {
    for (; !path_.empty() && path_.back() > j; path_.pop_back()) counts.pop();
    if (j < 0 || (!path_.empty() && path_.back() == j)) break;
    climbed_.push_back(j);
  }
  for (size_t i = climbed_.size(); i-- > 0;) {
    path_.push_back(climbed_[i]);
    counts.push(run_tokens_[static_cast<size_t>(climbed_[i])]);
  }
  if (counts.rows() != position + 1) {
    return fail(output, position, absl::StrCat("it sees ", counts.rows(), " rows"));
  }
  return absl::OkStatus();
}

// Adds the rows that the history lacks, and counts the work's past.
absl::Status RowReader::begin_counts(int prompt_tokens) {
  counting_ = false;
  const Work& work = *work_;
  TokenHistory& history = this->history();
  if (!work.token_history) history.truncate(0);
  const int n = work.rows_before();
  const int known = history.known();
  const int end = work.history_begin + static_cast<int>(work.history.size());
  if (end != n || work.history_begin > known) {
    return absl::InternalError(
        absl::StrCat("pass ", work.ticket, ": the history has ",
                     end != n ? absl::StrCat(end, " rows, the cache ", n)
                              : absl::StrCat("no rows from ", known, " to ", work.history_begin)));
  }
  drafts_.clear();
  later_.clear();
  auto chosen = work.history_chosen.begin();
  for (int row = known; row < n; ++row) {
    Token token = work.history[static_cast<size_t>(row - work.history_begin)];
    while (chosen != work.history_chosen.end() && chosen->first < row) ++chosen;
    if (chosen != work.history_chosen.end() && chosen->first == row) {
      TANDEM_ASSIGN_OR_RETURN(token, pick(chosen->second));
    }
    if (later_.empty() && token > kDraft) {
      history.append(token);
    } else {
      later_.push_back(token);
    }
  }
  const int end_known = history.known();  // of the rows whose tokens the history has
  const auto token_of = [&](int row) {
    return row < end_known ? history.token(row) : later_[static_cast<size_t>(row - end_known)];
  };
  run_tokens_.clear();
  for (int row = work.past; row < n; ++row) run_tokens_.push_back(token_of(row));
  for (int i = work.first; i < work.first + work.count; ++i) {
    const In& in = work.pass->add.in[static_cast<size_t>(i)];
    Token token = in.kind == In::kMask ? -1 : in.id;
    if (in.kind == In::kChosen) {
      TANDEM_ASSIGN_OR_RETURN(token, pick(in));
    }
    run_tokens_.push_back(token);
  }
  const int base = std::min(work.past, end_known);
  TokenCounts& counts = history.count(base, prompt_tokens);
  for (int row = base; row < work.past; ++row) counts.push(token_of(row));
  path_.clear();
  counting_ = true;
  return absl::OkStatus();
}

absl::StatusOr<Token> RowReader::pick(const In& in) {
  absl::StatusOr<Token> token = store_->pick(in.ref, in.id);
  if (token.ok() || cached_of_ == nullptr) return token;
  const std::optional<ChosenToken> cached = (*cached_of_)(in);
  if (!cached) return token;
  drafts_.push_back(*cached);
  return static_cast<Token>(kDraft - (std::ssize(drafts_) - 1));
}

// Draws from scratch_.weight; greedy: the argmax.
Token RowReader::draw(const Read& read, Purpose purpose, int position, Token argmax) const {
  if (read.warp.greedy()) return argmax;
  return sampling::race(scratch_.weight, key_of(*work_, read, purpose, position), ids_.more());
}

absl::Status RowReader::verify(const Read& read, const Work::Output& output, int position,
                               Token drafted, Out& out) {
  const bool bonus = static_cast<size_t>(output.index) + 1 == read.rows.size();
  if (!bonus && drafted < 0) {
    return fail(output, position, "no draft after this row to accept or reject");
  }
  sampling::Verdict verdict;
  if (bonus || read.match || read.warp.greedy()) {
    verdict = sampling::judge_match(draw(read, Purpose::kToken, position, out.argmax), drafted);
  } else {
    TANDEM_ASSIGN_OR_RETURN(const auto q, draft_dist(read.against, output.index));
    sampling::normalize(scratch_.weight, warped_.total, scratch_.weight);
    const double accept_u =
        sampling::uniform(read.warp.seed, read.warp.choice, Purpose::kAccept,
                          work_->pass->stage.first + position, read.round_start);
    verdict = sampling::judge(scratch_.weight, {*q}, drafted, accept_u,
                              key_of(*work_, read, Purpose::kResidual, position));
  }
  conclude(bonus, verdict.accepted, verdict.token, drafted, out);
  if (bonus || !verdict.accepted) prepare_next(read, verdict.token);
  return absl::OkStatus();
}

void RowReader::prepare_next(const Read& read, Token token) {
  const Processors* const processors = read.warp.processors.get();
  if (processors == nullptr || !processors->constraint) return;
  if (!read.judges() && read.rows.size() > 1) return;  // a tree: most rows are not followed
  TokenConstraint& constraint = *processors->constraint;
  if (std::ranges::find(constraint.ends(), token) != constraint.ends().end()) return;
  const std::span<const Token> answer = history().counts().output();
  std::vector<Token> next;
  next.reserve(answer.size() + 1);
  next.assign(answer.begin(), answer.end());
  next.push_back(token);
  constraint.prepare(std::move(next));
}

void RowReader::conclude(bool bonus, bool accepted, Token token, Token drafted, Out& out) {
  out.token = token;
  if (bonus) return;
  if (mutated(Mutation::kCommitRejected)) out.token = drafted;
  rejected_ = !accepted;
  readout_.accepted += accepted ? 1 : 0;
}

absl::StatusOr<std::shared_ptr<const Distribution>> RowReader::draft_dist(const DistRef& ref,
                                                                          int i) const {
  TicketId ticket = ref.ticket;
  int out = i;
  if (!ref.more.empty()) {
    if (static_cast<size_t>(i) > ref.more.size()) {
      return absl::InternalError(
          absl::StrCat("pass ", work_->ticket, " names no distribution for ", "its draft ", i));
    }
    if (i > 0) ticket = ref.more[static_cast<size_t>(i - 1)];
    out = 0;
  }
  return store_->dist(ticket, out);
}

Readout RowReader::take() {
  const std::span<const Ranked> ranked(readout_.ranked);
  size_t begin = 0;
  for (size_t i = 0; i < readout_.row.size(); ++i) {
    readout_.row[i].top = ranked.subspan(begin, top_end_[i] - begin);
    begin = top_end_[i];
  }
  if (work_->pass->share) {
    std::vector<Picks> picks;
    picks.reserve(readout_.row.size());
    for (size_t i = 0; i < readout_.row.size(); ++i) {
      const Out& out = readout_.row[i];
      Picks& p = picks.emplace_back();
      p.out = work_->outputs[i].out;
      p.token = out.token;
      for (const Ranked& r : out.top) p.ranked.push_back(r.token);
    }
    store_->put_picks(work_->ticket, std::move(picks));
  }
  work_ = nullptr;
  return std::exchange(readout_, Readout());
}

}  // namespace tandem
