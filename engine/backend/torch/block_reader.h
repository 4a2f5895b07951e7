// From the head's output to the readouts of works.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/plan.h"
#include "engine/pass/backend.h"
#include "engine/sampling/readout.h"
#include "engine/sampling/row_answer.h"
#include "engine/sampling/value_store.h"

namespace tandem {

// The rows of a block, in the host's memory: logits, [count, vocab], or answers, [count].
struct HeadRows {
  float* logits = nullptr;  // overwritten by readers
  const RowAnswer* answers = nullptr;
};

// Used by one thread, on its team. A work whose constraint is not known soon becomes late
// (WorkResult::late): the rest of its logits is copied, and the others go on.
class BlockReader {
 public:
  // store: where readouts leave values; outlives this
  BlockReader(ValueStore& store, int vocab_size) : store_(store), vocab_size_(vocab_size) {}

  // Sets results[w].status and, with a work's last block, results[w].readout, for the works of the
  // block whose status is OK. results: by Batch::works
  void read(const Batch& batch, const Plan& plan, const ReadBlock& block, const HeadRows& rows,
            std::vector<WorkResult>& results);
  // Has constraints prepare what the batch's reads will ask, while the model runs.
  void prepare(const Batch& batch, const Plan& plan);

 private:
  // rows: from the block's first head input of this work on
  absl::Status read_work(const Batch& batch, size_t w, const Plan& plan, const ReadBlock& block,
                         HeadRows rows, RowReader& reader, WorkResult& result) const;

  ValueStore& store_;
  const int vocab_size_;
  std::vector<RowReader> readers_;  // by range of a parallel loop
};

}  // namespace tandem
