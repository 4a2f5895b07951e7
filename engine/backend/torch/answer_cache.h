// Answers of batches that are under way, kept on the device: what batches behind them are fed with
// before the host has seen any of it. One for a device queue; its thread's.
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
  // Batches whose answers may be kept at a time, and rows of each that are read.
  static constexpr int kMostBatches = 16;
  static constexpr int kMostReads = 64;
  // A place for answers that nobody will name.
  static constexpr int64_t kNowhere = int64_t{kMostBatches} * kMostReads;

  // What is kept in which place. Names are known until the batch is forgotten.
  struct Batch {
    std::vector<int64_t> places;                  // by head input
    std::vector<std::pair<TicketId, int>> names;  // ticket and output
  };

  AnswerCache(Queue& queue, at::Device device);

  // [places] RowAnswer, on the device
  const at::Tensor& answers() const { return answers_; }

  // Places for a batch's answers, all nowhere but those that add() names.
  Batch begin(int reads);
  // Head input `i` of the batch is output `out` of the work's pass, about the first `vocab` tokens.
  void add(Batch& batch, int i, const Work& work, const Work::Output& out, int vocab);
  void forget(const Batch& batch);

  // Whether the work's picks may be named at all (Pass::share), by `out`.
  static bool keeps(const Work& work, const Work::Output& out);

  // The token that a kChosen input names, if it is kept and one of a vocabulary of `vocab`.
  std::optional<ChosenToken> find(const In& in, int vocab) const;

 private:
  struct Kept {
    int32_t place = 0;
    bool greedy = false;
    bool draws = false;
    int vocab = 0;  // tokens that the answer is about
    int top = 0;    // of them ranked
  };
  std::map<std::pair<TicketId, int>, Kept> kept_;
  int64_t next_ = 0;
  at::Tensor answers_;
};

}  // namespace tandem
