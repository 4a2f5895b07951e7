// The listener of one choice, which checks what a client may receive.
//
// Invariants 3 (every request ends exactly once), 4 (tokens are a prefix of the known answer, and
// all of it when OK), 5 (nothing after the end or a cancel), 8 and 13 (no event changes the
// answer), 12 (writes to a stalled reader are bounded).
#pragma once

#include <vector>

#include "engine/sched/spec.h"
#include "tests/simulation/world.h"

namespace tandem::simulation {

class Heard final : public SequenceListener {
 public:
  // `answer`: the reference's.
  Heard(World* world, size_t request, int choice, std::vector<Token> answer);

  void on_admitted() override;
  void on_tokens(std::span<Emitted> more) override;
  void on_end(const SequenceEnd& end) override;

  const Request& request() const { return world_->plan.requests[request_]; }
  const std::vector<Token>& tokens() const { return tokens_; }
  const SequenceEnd& end() const { return end_; }
  bool admitted() const { return admitted_; }
  bool ended() const { return ends_ > 0; }
  bool active() const { return submitted && !ended(); }
  Phase phase() const;  // REQUIRES: active

  // Checks that an event explains the end, and counts it.
  void check_end();

  // Its events.
  bool submitted = false;
  int64_t order = 0;  // of submission
  bool cancelled = false;
  bool struck = false;     // a device failed one of its passes
  bool no_memory = false;  // a device lacked memory for one of its passes
  bool shut_down = false;
  bool stalled = false;  // its reader has stopped
  int after_stall = 0;   // deliveries since the loop was notified
  bool loop_knows_stall = false;

 private:
  bool sure_to_agree() const;
  void unexplained();

  World* const world_;
  const size_t request_;
  const int choice_;
  const std::vector<Token> answer_;
  std::vector<Token> tokens_;
  bool admitted_ = false;
  int ends_ = 0;
  bool on_lost_device_ = false;  // when it ended
  SequenceEnd end_;
};

}  // namespace tandem::simulation
