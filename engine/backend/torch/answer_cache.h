// Answers of batches in flight, cached on the device: later batches read their tokens from there,
// before the host has read the answers. One per device queue, used by its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/backend/torch/queue/queue.h"
#include "engine/pass/backend.h"
#include "engine/sampling/row_answer.h"

namespace tandem {

class AnswerCache {
 public:
  // The most batches with cached answers at a time, and the most reads of each.
  static constexpr int kMostBatches = 16;
  static constexpr int kMostReads = 64;
  // The place of answers that no batch will read.
  static constexpr int64_t kNowhere = int64_t{kMostBatches} * kMostReads;

  // The cached answers of a batch. They can be found until the batch is forgotten.
  struct Batch {
    std::vector<int64_t> places;                  // by head input
    std::vector<std::pair<TicketId, int>> names;  // ticket and output
  };

  AnswerCache(Queue& queue, at::Device device);

  // [places] RowAnswer, on the device
  const at::Tensor& answers() const { return answers_; }

  // A batch's places: all kNowhere, except those that add() assigns.
  Batch begin(int reads);
  // Head input `i` of the batch is output `out` of the work's pass, over the first `vocab` tokens.
  void add(Batch& batch, int i, const Work& work, const Work::Output& out, int vocab);
  void forget(const Batch& batch);

  // Whether later passes may name the output's choice (Pass::share).
  static bool caches(const Work& work, const Work::Output& out);

  // The token that a kChosen input names, if it is cached and in a vocabulary of `vocab`.
  std::optional<ChosenToken> find(const In& in, int vocab) const;

 private:
  struct Entry {
    int32_t place = 0;
    bool greedy = false;
    bool draws = false;
    int vocab = 0;  // tokens that the answer covers
    int top = 0;    // ranked tokens of the answer
  };
  std::map<std::pair<TicketId, int>, Entry> entries_;
  int64_t next_ = 0;
  at::Tensor answers_;
};

}  // namespace tandem
