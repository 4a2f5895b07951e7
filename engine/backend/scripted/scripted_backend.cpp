#include "engine/backend/scripted/scripted_backend.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/pass/rows.h"

namespace tandem {

void ScriptedBackend::launch(const Batch& batch, Done done) {
  // `done` of an earlier batch comes before this one reads its picks, so they are the script's.
  const Batch* const same = &batch;  // stays alive until done
  real_->launch(batch, [this, same, done = std::move(done)](BatchResult result) {
    for (size_t i = 0; result.status.ok() && i < result.works.size(); ++i) {
      WorkResult& answer = result.works[i];
      if (answer.status.ok()) answer.status = rewrite(same->works[i], answer.readout);
    }
    done(std::move(result));
  });
}

absl::Status ScriptedBackend::check(const Work& work) const {
  for (const Read& read : work.pass->read) {
    if (!read.warp.greedy() || read.keep || read.top > 0) {
      return absl::UnimplementedError(
          absl::StrCat("pass ", work.ticket,
                       ": a scripted device answers greedy reads without `keep` and `top`"));
    }
  }
  for (size_t i = 0; i < work.pass->add.size(); ++i) {
    if (work.pass->add.parent[i] != static_cast<Row>(i) - 1) {
      return absl::UnimplementedError(
          absl::StrCat("pass ", work.ticket, ": a scripted device answers chains only"));
    }
  }
  return absl::OkStatus();
}

absl::Status ScriptedBackend::rewrite(const Work& work, Readout& readout) const {
  TANDEM_RETURN_IF_ERROR(check(work));
  const std::vector<int> positions = run_positions(work);
  const bool whole = large_.contains(work.model) && work.to == real_->shape(work.model).layers;
  std::vector<Picks> picks;
  bool rejected = false;  // of a chain that is judged
  readout.accepted = 0;
  for (size_t i = 0; i < work.outputs.size(); ++i) {
    const Work::Output& o = work.outputs[i];
    const Read& read = work.pass->read[static_cast<size_t>(o.read)];
    if (read.hidden) continue;
    const ScriptedText text(script_, read.warp.seed, read.warp.choice);
    const int next = positions[static_cast<size_t>(o.run_row)] + 1;  // whose token this row tells
    const bool large = whole && read.at == kTop;

    Out& out = readout.row[i];
    out.argmax = large ? text.large(next) : text.small(next);
    const bool sure = large || text.sure(next);
    if (read.max_prob) out.max_prob = sure ? Script::kSure : Script::kUnsure;
    if (read.logprob) out.logprob = sure ? -Script::kExpected : -Script::kSurprising;
    if (static_cast<size_t>(o.index) < read.score.size()) {
      const bool expected = read.score[static_cast<size_t>(o.index)] == out.argmax;
      out.nll = expected ? Script::kExpected : Script::kSurprising;
    }
    if (read.judges()) {
      out.token = rejected ? -1 : out.argmax;
      const bool last = static_cast<size_t>(o.index) + 1 == read.rows.size();
      if (!rejected && !last) {
        // The draft that this row judges is fed in the next one.
        const int added = work.first + o.run_row + 1 - work.frontier_rows();
        const In& in = work.pass->add.in[static_cast<size_t>(added)];
        Token draft = in.id;
        if (in.kind == In::kChosen) {
          TANDEM_ASSIGN_OR_RETURN(draft, values_->pick(in.ref, in.id));
        }
        rejected = draft != out.argmax;
        readout.accepted += rejected ? 0 : 1;
      }
    } else if (read.draw) {
      out.token = out.argmax;
    }
    picks.push_back({o.out, out.token, {}});
  }
  if (work.pass->share) values_->put_picks(work.ticket, std::move(picks));
  return absl::OkStatus();
}

}  // namespace tandem
