// What benchmarks of the loop share: one answer to wait for, and lists of shares as flags say them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/sched/spec.h"

namespace tandem {

class Answer final : public SequenceListener {
 public:
  void on_admitted() override {}
  void on_tokens(std::span<Emitted> more) override {
    const auto now = std::chrono::steady_clock::now();
    for (const Emitted& e : more) {
      tokens.push_back(e.token);
      arrivals.push_back({now, e.provenance.proposed});
    }
    const std::lock_guard lock(mutex_);
    begun_ = true;
    changed_.notify_all();
  }
  void on_end(const SequenceEnd& e) override {
    const std::lock_guard lock(mutex_);
    end = e;
    begun_ = ended_ = true;
    changed_.notify_all();
  }
  // Until its first token is there, or it has ended without one.
  void wait_for_first() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return begun_; });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  struct Arrival {
    std::chrono::steady_clock::time_point at;
    Source proposed = Source::kLarge;
  };

  // To be read after wait().
  std::vector<Token> tokens;
  std::vector<Arrival> arrivals;  // of each token
  SequenceEnd end;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false, ended_ = false;
};

// Numbers in [0, 1].
inline absl::StatusOr<std::vector<double>> parse_shares(const char* flag, absl::string_view value,
                                                        char separator = ',') {
  std::vector<double> found;
  for (const absl::string_view text : absl::StrSplit(value, separator)) {
    double share = 0;
    if (!absl::SimpleAtod(text, &share) || share < 0 || share > 1) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", value,
                                                     "; allowed: numbers in [0, 1], separated by ",
                                                     std::string(1, separator)));
    }
    found.push_back(share);
  }
  return found;
}

}  // namespace tandem
