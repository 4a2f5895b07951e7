#include "engine/sampling/late_work.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/pass/constraint.h"

namespace tandem {

std::atomic<size_t> LateWork::bytes_{0};

bool LateWork::has_room(size_t rows, size_t vocab) {
  return bytes_.load() + rows * vocab * sizeof(float) <= kMostBytes;
}

LateWork::LateWork(const Work& work, RowReader&& reader, size_t next)
    : LateAnswers(work), reader_(std::move(reader)), next_(next) {
  reader_.moved(this->work());
}

void LateWork::add(std::span<const float> logits, int position, Token next_input) {
  rows_.push_back({{logits.begin(), logits.end()}, position, next_input});
  bytes_ += logits.size_bytes();
}

void LateWork::start(std::function<void(WorkResult)> done) {
  const Read& read = work().pass->read[static_cast<size_t>(work().outputs[next_].read)];
  read.warp.processors->constraint->post([this, done = std::move(done)] { done(this->read()); });
}

WorkResult LateWork::read() {
  WorkResult result;
  try {
    for (size_t i = 0; i < rows_.size() && result.status.ok(); ++i) {
      Row& row = rows_[i];
      if (row.logits.empty()) {
        reader_.skip();
      } else {
        result.status =
            reader_.read(work().outputs[next_ + i], row.logits, row.position, row.next_input);
      }
    }
    if (result.status.ok()) result.readout = reader_.take();
  } catch (const std::exception& e) {
    result.status = absl::InternalError(absl::StrCat("reading logits: ", e.what()));
  }
  clear();
  return result;
}

void LateWork::clear() {
  for (const Row& row : rows_) bytes_ -= row.logits.size() * sizeof(float);
  rows_.clear();
}

}  // namespace tandem
