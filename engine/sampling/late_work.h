// Answers of a work that wait for a constraint (LateAnswers): the logits of its rows and the reader
// that stopped at one of them. The constraint's thread reads the rest; the device continues.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/pass/backend.h"
#include "engine/sampling/readout.h"

namespace tandem {

class LateWork final : public LateAnswers {
 public:
  // False: the late works of the process have too many logits for `rows` more, so the device waits.
  static bool has_room(size_t rows, size_t vocab);

  // reader: RowReader::must_wait() has returned true for work.outputs[next]; it can begin another
  // work then.
  LateWork(const Work& work, RowReader&& reader, size_t next);
  ~LateWork() override { clear(); }

  // The next output's arguments of RowReader::read(); REQUIRES: called once per output, in order.
  // logits: copied; empty: the output is a hidden state.
  void add(std::span<const float> logits, int position, Token next_input);
  void start(std::function<void(WorkResult)> done) override;

 private:
  struct Row {
    std::vector<float> logits;
    int position = 0;
    Token next_input = -1;
  };
  // Of all late works of the process. A row of 150,000 tokens has 0.6 MB.
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static std::atomic<size_t> bytes_;

  WorkResult read();
  void clear();

  RowReader reader_;
  const size_t next_;      // output of rows_[0]
  std::vector<Row> rows_;  // by output
};

}  // namespace tandem
