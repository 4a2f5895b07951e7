// Decides draft by draft, within a round, whether one more draft token is worth its time.
//
// A draft makes a token if it and all before it are accepted. Its probability follows from the
// small model's confidence, or from the matched length (n-grams). It costs a pass of the small
// model, unless it was looked up, and a row of the large one. Drafting continues while the expected
// token comes faster than tokens do on average. This stopping rule maximizes tokens per second and
// amounts to a threshold on the probability of rejection (Huang et al. 2024, SpecDec++, theorem 1).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/decode/pacing/acceptance_stats.h"

namespace tandem {

// The drafts of one request. Time decides, so this requires that drafts cannot change tokens.
// Seconds are those of MethodStats::share_seconds. Loop thread only.
class DraftStopping {
 public:
  static constexpr double kMemory = 0.98, kSharedMemory = 0.995;  // of a draft
  static constexpr double kRoundMemory = 0.97, kSharedRoundMemory = 0.99;
  static constexpr double kNewRounds = 30;  // rounds that the shared means count for
  static constexpr int kUnknown = 2;        // drafts while costs are unknown
  static constexpr int kTooUnsure = 16;     // attempts to measure costs where drafts are barred

  // most: drafts of a round. stats: null for a request without a deployment. parallel: the small
  // model has mask tokens, which predict tokens behind its own.
  DraftStopping(int most, std::shared_ptr<AcceptanceStats> stats, bool parallel = false);
  ~DraftStopping() { --shared_.streams; }
  DraftStopping(const DraftStopping&) = delete;
  DraftStopping& operator=(const DraftStopping&) = delete;

  bool single_request() const { return shared_.streams == 1; }  // of those that share the stats
  void begin_round();
  // The small model may draft in this round. Before the first round: it reads the prompt.
  bool may_draft() const { return may_draft_; }

  enum class Next : uint8_t { kStop, kSmall, kLookup };
  // matched: of the next n-gram proposal, 0: none. rows: of the small model's next pass. parallel:
  // confidence of the parallel token that may come next; 0: none.
  Next next(int matched, int rows, float parallel = 0);

  // A pass of the small model over `rows` rows. Its tokens follow.
  void observe_pass(int rows, double seconds);
  // Adds a token of that pass. False: its confidence is below `least`, or it is not worth its row
  // in the large model; drafting ends without it.
  bool add_small(float max_prob, float least = 0);
  // Adds a parallel token that no further pass confirmed. False: likewise.
  bool add_parallel(float max_prob, float least = 0);
  void add_lookup(int matched);

  // The large model accepted the first `accepted` drafts in a pass of `rows` rows.
  void end_round(int accepted, int rows, double seconds);

 private:
  double rate(int event) const { return acceptance_.rate(event, shared_.acceptance); }
  void observe(int event, bool accepted);
  double tokens_per_second() const;
  double gain_of_small(int rows, float parallel = 0) const;
  double gain_of_known(int token) const;  // of a draft that costs only its row
  int context() const { return drafts_.empty() ? after_ : drafts_.back(); }
  bool continues_copy() const {
    return !drafts_.empty() && !DraftAcceptance::is_small(drafts_.back());
  }
  bool costs_unknown() const { return !shared_.large.known() && shared_.too_unsure < kTooUnsure; }
  void add(int token);
  void choose_next_round(bool drafted, double lost);

  const int most_;
  const bool parallel_;
  const std::shared_ptr<AcceptanceStats> stats_;
  DraftStats& shared_;
  DraftAcceptance acceptance_;
  RecentRounds recent_;
  int after_ = DraftAcceptance::kAfterAll;  // the previous round
  bool first_ = true;                       // no round yet: the small model still reads the prompt
  bool plain_next_ = false;                 // to measure its cost

  // This round.
  std::vector<int> drafts_;  // classes of DraftAcceptance
  double all_accepted_ = 1;  // probability
  int passes_ = 0;           // of the small model
  double seconds_ = 0;       // of these
  bool may_draft_ = false;
  bool further_ = false;  // one draft more than pays
  Exploration::Round mode_ = Exploration::Round::kBest;
};

}  // namespace tandem
