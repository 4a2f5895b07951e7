// From logits to answers: what Pass::read asks of each row, on the CPU. Other devices answer alike.
//
//   RowReader reader(&store);              // one per lane thread: its scratch is reused
//   reader.begin(work);
//   for (const Work::Output& o : work.outputs)
//     TANDEM_RETURN_IF_ERROR(reader.read(o, logits of o.run_row at o's read's layer and head,
//                                        position of o.run_row, token fed after it in the chain));
//   result.readout = reader.take();
//
// Definitions. "Unwarped" are the logits after the processors (processors.h) and before temperature
// and truncation (BiLD compares these); "raw" are the model's own. Argmax ties go to the lowest id.
// Greedy (temperature 0) logprobs are the log-softmax of the unwarped logits; a greedy kept
// distribution is one-hot on the argmax. Raw logprobs are the log-softmax of the raw logits, of the
// same tokens: `top` stays in the order of the unwarped ones, which is the order in which tokens
// would be chosen.
//
// Which key a token is drawn with (random.h, race.h), always at the position of the row whose
// logits are drawn from:
//   draw           kToken     AR, exact drafts, BiTA, PPD: the same race wherever it is run
//   match          kToken     of each row, up to the first whose draft is another token
//   draw + keep    kDraft     a draft for the ratio rule; keyed by the round as well
//   draw + tentative  kDraft  likewise: what may be put in its place takes the kToken key
//   against        kAccept for the test, kResidual after a rejection; keyed by the round as well.
//                  After full acceptance the bonus is a kToken draw: AR's own token there. Nothing
//                  else of the request has used that key (drafts take kDraft), so it is
//                  independent of the drafts before it and the joint distribution is the target's.
//
// A pass has at most one read that judges (Readout::accepted is one number), all its rows in one
// work. Rows behind the first rejected draft are not looked at: their Out is unset, and logits that
// nobody needs fail nothing.
//
// Threading: one thread at a time; the ValueStore is shared.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/pass/backend.h"
#include "engine/pass/pass.h"
#include "engine/pass/token_history.h"
#include "engine/sampling/processors.h"
#include "engine/sampling/random.h"
#include "engine/sampling/row_answer.h"
#include "engine/sampling/value_store.h"
#include "engine/sampling/warp.h"

namespace tandem {

// A device's answer, on the CPU. logits: [question.vocab]
RowAnswer answer_row(std::span<const float> logits, const RowQuestion& question);

class RowReader {
 public:
  // `store` may be null where no pass shares, keeps, verifies or is fed what another one chose; it
  // outlives the reader.
  explicit RowReader(ValueStore* store) : store_(store) {}

  // Starts a work, dropping what is left of one that failed. `work` and its pass stay alive and
  // unchanged until take().
  void begin(const Work& work);

  // Answers the next of work.outputs; REQUIRES: called once for each, in order.
  // logits: [vocab] fp32 of the output's row, layer and head; overwritten.
  // position: of that row (run_positions()).
  // next_input: the token fed in the next row of a chain that is judged, that is the draft that
  // this row's logits judge; -1 for the chain's last row and for all other reads. Errors, after
  // which the work has no readout: INTERNAL for NaN or +Inf among the logits or nothing but -Inf,
  // naming the row; INTERNAL for a kept distribution or a chosen token that is not in the store,
  // and for a history (Work::history) that lacks rows.
  absl::Status read(const Work::Output& output, std::span<float> logits, int position,
                    Token next_input = -1);

  // Whether a device's answer about a row (row_answer.h) says all that this read needs: where no
  // processors, no cut and no kept distribution stand between the logits and what is read.
  static bool can_ask(const Read& read);
  // What to ask about an output's row, at `position`, of so many logits. REQUIRES: can_ask().
  static RowQuestion question(const Work& work, const Work::Output& output, int position,
                              int vocab);
  // As above, of the answer to that question.
  absl::Status read(const Work::Output& output, const RowAnswer& answer, int position, int vocab,
                    Token next_input = -1);

  // Instead of read() where the output is a hidden state: it has no answer.
  void skip();

  // One Out for each of work.outputs. Puts the picks of a sharing pass into the store.
  Readout take();

 private:
  absl::Status count(const Processors& processors, const Work::Output& output, int position);
  absl::Status begin_counts(int prompt_tokens);
  TokenHistory& history() { return work_->token_history ? *work_->token_history : own_history_; }
  Token draw(const Read& read, sampling::Purpose purpose, int position, Token argmax) const;
  // A row behind the first rejected draft: its Out is unset.
  bool left_out(const Read& read);
  void conclude(bool bonus, bool accepted, Token token, Token drafted, Out& out);
  absl::Status verify(const Read& read, const Work::Output& output, int position, Token drafted,
                      Out& out);
  absl::StatusOr<std::shared_ptr<const Distribution>> draft_dist(const DistRef& ref, int i) const;
  absl::Status fail(const Work::Output& output, int position, absl::string_view what) const;

  ValueStore* store_;
  const Work* work_ = nullptr;
  Readout readout_;
  std::vector<size_t> top_end_;  // by output: past its last in readout_.ranked; see take()
  bool rejected_ = false;        // the chain that is judged has ended

  // Token counts for penalties. path_ lies in counts() on top of the work's past.
  bool counting_ = false;          // the rest is of this work
  TokenHistory own_history_;       // for works that bring none
  std::vector<Token> run_tokens_;  // by run row; < 0: no token
  std::vector<int> path_;          // run rows, each an ancestor of the next
  std::vector<int> climbed_;       // scratch

  // Of the row in hand.
  std::vector<float> raw_;  // the logits before processors, where both are asked for
  sampling::Warped warped_;
  sampling::Scratch scratch_;
  std::vector<Token> best_;
};

}  // namespace tandem
