#include "engine/backend/torch/block_reader.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/profile.h"
#include "engine/base/status.h"
#include "engine/sampling/late_work.h"

namespace tandem {

void BlockReader::read(const Batch& batch, const Plan& plan, const ReadBlock& block,
                       const HeadRows& rows, std::vector<WorkResult>& results) {
  constexpr int64_t kParallelLogits = 65536;  // below, one thread is faster
  const StepProfile::Section section(StepProfile::kReadout);
  const auto count = static_cast<int64_t>(block.end - block.begin);
  const int team = cpu::team_size();
  const bool parallel =
      rows.answers == nullptr && block.count * int64_t{vocab_size_} > kParallelLogits;
  const int64_t grain = parallel ? (count + team - 1) / team : count;
  while (static_cast<int64_t>(readers_.size()) < (count + grain - 1) / grain) {
    readers_.emplace_back(&store_);
  }
  cpu::parallel_for(count, grain, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const size_t w = block.begin + static_cast<size_t>(i);
      if (!results[w].status.ok()) continue;
      const int64_t offset = std::max(0, plan.items[w].first_read - block.first);
      const HeadRows own = rows.answers != nullptr ? HeadRows{nullptr, rows.answers + offset}
                                                   : HeadRows{rows.logits + offset * vocab_size_};
      results[w].status = read_work(batch, w, plan, block, own,
                                    readers_[static_cast<size_t>(from / grain)], results[w]);
    }
  });
}

void BlockReader::prepare(const Batch& batch, const Plan& plan) {
  for (size_t w = 0; w < batch.works.size(); ++w) {
    const Work& work = batch.works[w];
    const Plan::Item& item = plan.items[w];
    if (work.late == nullptr || !item.status.ok()) continue;
    if (readers_.empty()) readers_.emplace_back(&store_);
    const auto positions =
        std::span(plan.columns.position)
            .subspan(static_cast<size_t>(item.first_row), static_cast<size_t>(work.run_rows()));
    // Its reads meet the same error.
    readers_.front().prepare(work, positions).IgnoreError();
  }
}

absl::Status BlockReader::read_work(const Batch& batch, size_t w, const Plan& plan,
                                    const ReadBlock& block, HeadRows rows, RowReader& reader,
                                    WorkResult& result) const try {
  const Work& work = batch.works[w];
  const Plan::Item& item = plan.items[w];
  const auto vocab = static_cast<size_t>(vocab_size_);
  auto* late = static_cast<LateWork*>(result.late.get());  // of an earlier block
  if (block.from == 0) reader.begin(work);
  const size_t end = std::min(block.to, work.outputs.size());
  for (size_t i = block.from; i < end; ++i) {
    const Work::Output& o = work.outputs[i];
    const Read& read = work.pass->read[static_cast<size_t>(o.read)];
    if (!read.uses_head()) {
      if (late != nullptr) {
        late->add({}, 0, -1);
      } else {
        reader.skip();  // NOLINT(bugprone-use-after-move): `late` is set once it was moved
      }
      continue;
    }
    const auto row = static_cast<size_t>(item.first_row + o.run_row);
    const Token next_input = plan.judged(batch, w, i);
    const int position = plan.columns.position[row];
    if (rows.answers != nullptr) {
      TANDEM_RETURN_IF_ERROR(reader.read(o, *rows.answers++, position, vocab_size_, next_input));
      continue;
    }
    if (late == nullptr && work.late != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(const bool waits, reader.must_wait(o, position));
      if (waits && LateWork::has_room(work.outputs.size() - i, vocab)) {
        work.late->store(true);
        result.late = std::make_unique<LateWork>(work, std::move(reader), i);
        late = static_cast<LateWork*>(result.late.get());
      }
    }
    if (late != nullptr) {
      late->add({rows.logits, vocab}, position, next_input);
    } else {
      TANDEM_RETURN_IF_ERROR(reader.read(o, {rows.logits, vocab}, position, next_input));
    }
    rows.logits += vocab;
  }
  if (end == work.outputs.size() && late == nullptr) result.readout = reader.take();
  return absl::OkStatus();
} catch (const std::exception& e) {
  return absl::InternalError(absl::StrCat("reading logits: ", e.what()));
}

}  // namespace tandem
