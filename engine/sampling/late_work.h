// Answers of a work that wait for a constraint (LateAnswers): the logits of its rows and the reader
// that stopped at one of them. The device goes on; the constraint's thread reads the rest.
#pragma once

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
  // reader: RowReader::must_wait() has returned true for work.outputs[next]; it can begin another
  // work then. constraint: of that output.
  LateWork(const Work& work, RowReader&& reader, size_t next);

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
  WorkResult read();

  RowReader reader_;
  const size_t next_;      // output of rows_[0]
  std::vector<Row> rows_;  // by output
};

}  // namespace tandem
