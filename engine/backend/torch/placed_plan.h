// The arrays of a plan where kernels read them.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/lora_view.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/plan.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/queue/staging.h"
#include "engine/backend/torch/row_view.h"
#include "engine/sampling/readout.h"
#include "engine/sampling/row_answer.h"

namespace tandem {

// RowCopies in a kernel's memory.
struct PlacedCopies {
  const int64_t* from = nullptr;
  const int64_t* to = nullptr;
  int n = 0;
};

class PlacedPlan {
 public:
  // queue: null: the plan's own arrays, in the host's memory
  explicit PlacedPlan(Queue* queue) : staging_(queue) {}

  // Copies the plan's arrays, the questions and their changes to the device. REQUIRES: no question
  // has drafts. Replaces those of the last call, whose batch is done. page_rows: of the model's
  // pool; memory: the pool of the encoder Plan::memory, null if that is not valid; loras: by
  // Plan::segments, or empty.
  void place(const Plan& plan, const Questions& questions, int page_rows, const KvPool* memory,
             const std::vector<LoraColumns>& loras);

  const int32_t* token = nullptr;
  const int32_t* replaced = nullptr;
  const int32_t* position = nullptr;
  PlacedCopies load, save;
  std::vector<RowView> views;                // by Plan::segments
  std::vector<Memory> memories;              // by Plan::segments
  std::vector<const int64_t*> segment_rows;  // by Plan::segments; null: all rows
  std::vector<LoraView> loras;               // by Plan::segments; empty: as place()
  std::vector<PlacedCopies> captures;        // by Plan::captures
  std::vector<PlacedCopies> stored;          // by Plan::captures
  std::vector<PlacedCopies> pooled;          // by Plan::captures
  std::vector<PlacedCopies> masks;           // by Plan::masks
  std::vector<PlacedCopies> embedded;        // by Plan::embedded
  std::vector<const int64_t*> head_reads;    // by Plan::heads
  const RowQuestion* questions = nullptr;    // [reads]
  const RowChange* changes = nullptr;        // as Questions::changes

 private:
  PlacedCopies place(const RowCopies& copies);
  RowView place(const RowColumns& columns, int page_rows, const int32_t* extra,
                const int32_t* pages);
  Memory place_memory(const RowColumns& columns, const RowView& own, const int32_t* zeros,
                      const KvPool* pool);

  Staging staging_;
  std::deque<std::vector<RowPiece>> pieces_;  // of views
};

}  // namespace tandem
