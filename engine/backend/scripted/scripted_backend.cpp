#include "engine/backend/scripted/scripted_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/pass/rows.h"

namespace tandem {
namespace {

// Replaces the ranked tokens of a row.
void put_best(const std::vector<Token>& best, Out* out, Readout* readout) {
  if (best.empty()) return;
  const auto first = static_cast<size_t>(out->top.data() - readout->ranked.data());
  for (size_t rank = 0; rank < best.size(); ++rank) {
    readout->ranked[first + rank].token = best[rank];
  }
  out->argmax = best[0];
}

}  // namespace

void ScriptedBackend::launch(const Batch& batch, Done done) {
  // `done` of an earlier batch runs before this batch reads its picks, so they are scripted.
  const Batch* const same = &batch;  // stays alive until done
  real_->launch(batch, [this, same, done = std::move(done)](BatchResult result) {
    for (size_t i = 0; result.status.ok() && i < result.works.size(); ++i) {
      WorkResult& answer = result.works[i];
      if (answer.late != nullptr) {
        answer.late = nullptr;
        answer.status = absl::UnimplementedError("a scripted device has no late answers");
      }
      if (answer.status.ok()) answer.status = rewrite(same->works[i], answer.readout);
    }
    done(std::move(result));
  });
}

bool ScriptedBackend::is_large(const Work& work, const Read& read) const {
  return large_.contains(work.model) && work.to == real_->shape(work.model).layers &&
         read.at == kTop;
}

absl::Status ScriptedBackend::check(const Work& work) const {
  const Tree& rows = work.pass->add;
  const auto is_mask_row = [&](Row row) {
    return row >= 0 && rows.in[static_cast<size_t>(row)].kind == In::kMask;
  };
  bool is_chain = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    is_chain = is_chain && rows.parent[i] == static_cast<Row>(i) - 1;
  }
  for (const Read& read : work.pass->read) {
    const bool ranks_large =
        read.top > 0 && is_large(work, read) && !std::ranges::all_of(read.rows, is_mask_row);
    if (read.warp.greedy() && !read.keep && !ranks_large && (is_chain || !read.judges())) continue;
    return absl::UnimplementedError(absl::StrCat(
        "pass ", work.ticket, ": a scripted device answers greedy reads without `keep`, `top` of ",
        "masks and early layers, and judges chains"));
  }
  return absl::OkStatus();
}

absl::Status ScriptedBackend::rewrite(const Work& work, Readout& readout) const {
  TANDEM_RETURN_IF_ERROR(check(work));
  const std::vector<int> positions = run_positions(work);
  std::vector<Picks> picks;
  bool rejected = false;  // of a chain that is judged
  readout.accepted = 0;
  for (size_t i = 0; i < work.outputs.size(); ++i) {
    const Work::Output& o = work.outputs[i];
    const Read& read = work.pass->read[static_cast<size_t>(o.read)];
    if (!read.uses_head()) continue;
    const ScriptedText text(script_, read.warp.seed, read.warp.choice);
    // The position of the predicted token.
    const int next = work.pass->stage.first + positions[static_cast<size_t>(o.run_row)] + 1;
    const bool large = is_large(work, read);

    Out& out = readout.row[i];
    const int top = static_cast<int>(out.top.size());
    if (is_mask(work, o.run_row)) {
      const int added = work.first + o.run_row - work.frontier_rows();
      const int mask = work.pass->add.in[static_cast<size_t>(added)].id;
      put_best(text.candidates(mask, next, top), &out, &readout);
      continue;
    }
    out.argmax = large ? text.large(next) : text.small(next);
    if (read.top > 0) put_best(text.early(next, top), &out, &readout);
    const bool sure = large || text.sure(next);
    if (read.max_prob) out.max_prob = sure ? Script::kSure : Script::kUnsure;
    if (read.logprob) out.logprob = sure ? -Script::kExpected : -Script::kSurprising;
    if (static_cast<size_t>(o.index) < read.score.size()) {
      const bool expected = read.score[static_cast<size_t>(o.index)] == out.argmax;
      out.nll = expected ? Script::kExpected : Script::kSurprising;
      if (read.logprob) out.score_logprob = -out.nll;
    }
    if (read.judges()) {
      out.token = rejected ? -1 : out.argmax;
      const bool last = static_cast<size_t>(o.index) + 1 == read.rows.size();
      if (!rejected && !last) {
        // The draft that this row judges is the input of the next row.
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
