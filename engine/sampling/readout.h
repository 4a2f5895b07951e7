// Answers the reads of a pass (Pass::read) from logits, on the CPU. Other devices answer alike.
//
//   RowReader reader(&store);              // one per device thread: its buffers are reused
//   reader.begin(work);
//   for (const Work::Output& o : work.outputs)
//     TANDEM_RETURN_IF_ERROR(reader.read(o, logits of o.run_row at o's read's layer and head,
//                                        position of o.run_row, input of the next row in the
//                                        chain));
//   result.readout = reader.take();
//
// Definitions. "Unwarped" logits are those after the processors (processors.h) and before
// temperature and truncation; BiLD compares these. "Raw" logits are the model's own. Argmax ties go
// to the lowest id. Greedy (temperature 0) logprobs are the log-softmax of the unwarped logits; a
// greedy kept distribution is one-hot on the argmax. Raw logprobs are the log-softmax of the raw
// logits for the same tokens: `top` keeps the order of the unwarped logits.
//
// Key of each draw (random.h, race.h), always with the position of the row whose logits are read:
//   draw           kToken     AR, exact drafts, BiTA, PPD: the same race in every method
//   match          kToken     for each row, up to the first draft that is another token
//   draw + keep    kDraft     a draft for the ratio rule; keyed by the round as well
//   draw + tentative  kDraft  likewise; a token drawn again at the position uses kToken
//   against        kAccept for the test, kResidual after a rejection; keyed by the round as well.
//                  After full acceptance, the bonus token is a kToken draw: AR's token at that
//                  position. Drafts use kDraft, so it is independent of the drafts before it, and
//                  the joint distribution is the target's.
//
// A pass has at most one read that judges (Readout::accepted is one number), with all its rows in
// one work. Rows behind the first rejected draft are skipped: their Out is unset, and invalid
// logits there cause no error.
//
// Threading: one thread at a time; the ValueStore is shared.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/pass/backend.h"
#include "engine/pass/pass.h"
#include "engine/pass/token_history.h"
#include "engine/sampling/drawn_ids.h"
#include "engine/sampling/processors.h"
#include "engine/sampling/random.h"
#include "engine/sampling/row_answer.h"
#include "engine/sampling/value_store.h"
#include "engine/sampling/warp.h"

namespace tandem {

// Answers a device's question (row_answer.h) on the CPU. logits: [question.vocab], to which the
// changes are made
RowAnswer answer_row(std::span<float> logits, const RowQuestion& question,
                     const RowChanges& changes);

// The questions of a step, one per head input, and what they name.
struct Questions {
  std::vector<RowQuestion> rows;
  std::vector<RowChange> changes;
  std::vector<ChosenToken> drafts;
};

class RowReader {
 public:
  // store: outlives the reader. May be null if no pass shares picks, keeps distributions, verifies
  // drafts or has kChosen inputs.
  explicit RowReader(ValueStore* store) : store_(store) {}

  // Starts a work and discards a previous one that failed. `work` and its pass must stay unchanged
  // until take().
  void begin(const Work& work);

  // Answers the next of work.outputs. REQUIRES: called once per output, in order.
  // logits: [vocab] fp32 of the output's row, layer and head; overwritten.
  // position: of that row (run_positions()).
  // next_input: in a judged chain, the draft that this row's logits judge, which is the input of
  // the next row; -1 for the chain's last row and for all other reads. Errors end the work:
  // INTERNAL for NaN or +Inf among the logits or all -Inf, naming the row; for a kept distribution
  // or chosen token missing in the store; for rows missing in Work::history.
  absl::Status read(const Work::Output& output, std::span<float> logits, int position,
                    Token next_input = -1);

  // Whether this read needs no more of a row of logits than its greatest elements.
  static bool needs_argmax_alone(const Read& read);
  // Whether a RowAnswer (row_answer.h) has all that this read needs.
  static bool can_ask(const Read& read);
  // The question about an output's row, without changes. position: of the row. vocab: number of
  // logits. REQUIRES: can_ask().
  static RowQuestion question(const Work& work, const Work::Output& output, int position,
                              int vocab);
  // The answer that the device retains about a kChosen input; none: it does not.
  using CachedOf = std::function<std::optional<ChosenToken>(const In&)>;
  // As question(), and appends to `all` what processors do to the row. cached_of: of picks that are
  // not in the store; may be null. Errors as read(): also if a penalty counts a token that no pass
  // has drawn yet. REQUIRES: begin(work); can_ask().
  absl::StatusOr<RowQuestion> ask(const Work::Output& output, int position, int vocab,
                                  const CachedOf& cached_of, Questions& all);
  // Has the constraints of the work's outputs prepare what may follow, while the model runs.
  // positions: of the run rows. REQUIRES: picks that are its inputs are in the store.
  absl::Status prepare(const Work& work, std::span<const int32_t> positions);
  // True: the constraint of the next output is not known soon (TokenConstraint::soon()), so read()
  // would wait. position: as for read().
  absl::StatusOr<bool> must_wait(const Work::Output& output, int position);
  // The same work at another address.
  void moved(const Work& work) { work_ = &work; }

  // As above, from the answer to that question.
  absl::Status read(const Work::Output& output, const RowAnswer& answer, int position, int vocab,
                    Token next_input = -1);

  // Instead of read() for outputs that are hidden states: their Out is unset.
  void skip();

  // One Out per output. Puts the picks of a sharing pass into the store.
  Readout take();

 private:
  absl::Status count(const Processors& processors, const Work::Output& output, int position);
  // After a final draw: has the constraint prepare what may follow `token`.
  void prepare_next(const Read& read, Token token);
  absl::Status begin_counts(int prompt_tokens);
  absl::StatusOr<Token> pick(const In& in);
  TokenHistory& history() { return work_->token_history ? *work_->token_history : own_history_; }
  Token draw(const Read& read, sampling::Purpose purpose, int position, Token argmax) const;
  // True for a row behind the first rejected draft, whose Out is then unset.
  bool left_out(const Read& read);
  void conclude(bool bonus, bool accepted, Token token, Token drafted, Out& out);
  absl::Status verify(const Read& read, const Work::Output& output, int position, Token drafted,
                      Out& out);
  absl::StatusOr<std::shared_ptr<const Distribution>> draft_dist(const DistRef& ref, int i) const;
  absl::Status fail(const Work::Output& output, int position, absl::string_view what) const;

  ValueStore* store_;
  const Work* work_ = nullptr;
  Readout readout_;
  std::vector<size_t> top_end_;  // by output: end of its part of readout_.ranked; see take()
  bool rejected_ = false;        // the judged chain has ended
  // Of must_wait(), for the read() that follows.
  std::optional<std::shared_ptr<const LegalTokens>> legal_;

  // Token counts for penalties. The rows of path_ lie on top of the work's past in counts().
  bool counting_ = false;          // the members below are of this work
  TokenHistory own_history_;       // for works without one
  std::vector<Token> run_tokens_;  // by run row; < 0: no token
  // Picks that only the device knows. Their rows' tokens are kDraft - index.
  static constexpr Token kDraft = -3;
  const CachedOf* cached_of_ = nullptr;  // of ask()
  std::vector<ChosenToken> drafts_;
  std::vector<Token> later_;  // of rows from history().known() on, up to the cache's end
  std::vector<int> path_;     // run rows, each an ancestor of the next
  std::vector<int> climbed_;  // scratch

  // Of the current row.
  sampling::DrawnIds ids_;
  std::vector<float> raw_;  // logits before processors, if both are read
  sampling::Warped warped_;
  sampling::Scratch scratch_;
  std::vector<Token> best_;
};

}  // namespace tandem
