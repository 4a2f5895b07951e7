// Decides draft by draft, within a round, whether one more draft token is worth its time.
//
// A draft makes a token if it and all before it are accepted. Its probability follows from the
// small model's confidence, or from the match (look-ups). It costs a pass of the small
// model, unless it was looked up, and a row of the large one. Drafting continues while the expected
// token comes faster than tokens do on average. This stopping rule maximizes tokens per second and
// amounts to a threshold on the probability of rejection (Huang et al. 2024, SpecDec++, theorem 1).
//
// Tokens per second are those of all requests on the device. Requests that draft share the batches
// of the small model, and wait for each other before the large one (sched/batcher.h). So a round
// lasts as long as its batches, and costs follow from the number of requests, now or in the last
// rounds: a client may send its next one soon. A request uses the small model while that pays
// together with the other requests that would use it. One that would have to read a long text first
// for a short answer would not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/pacing/batch_time.h"

namespace tandem {

// The drafts of one request. Time decides, so this requires that drafts cannot change tokens. Loop
// thread only.
class DraftStopping {
 public:
  static constexpr double kMemory = 0.98, kSharedMemory = 0.995;  // of a draft
  static constexpr int kMostOfSmall = 12;  // drafts of a round; look-ups may be longer
  // Look-ups of a round, at most: at the start of a request, and after accepted ones.
  static constexpr int kLeastCopied = 4, kMostCopied = 64;
  static constexpr double kExplored = 0.01;  // share of the time for drafts that do not seem to pay
  static constexpr int kForced = -1;         // the class of forced drafts, which is not observed

  // What drafts by.
  enum class By : uint8_t {
    kLookup,
    kSmall,     // the small model too
    kParallel,  // the small model, whose mask tokens predict tokens behind its own
  };
  struct Round {
    ModelLoad large, small;
    int behind = 0;     // rows that the small model lacks
    int remaining = 1;  // tokens of the request, at most
  };

  // most: drafts of a round. stats: null for a request without a deployment.
  DraftStopping(int most, std::shared_ptr<AcceptanceStats> stats, By by);
  ~DraftStopping();
  DraftStopping(const DraftStopping&) = delete;
  DraftStopping& operator=(const DraftStopping&) = delete;

  void begin_round(const Round& round);
  // The drafts of this round are complete.
  void end_drafts() { be_active(false); }
  // The small model may draft in this round. Before the first round: it reads the prompt.
  bool may_draft() const { return may_draft_; }
  bool parallel() const { return parallel_; }  // with mask tokens

  enum class Next : uint8_t { kStop, kSmall, kLookup };
  // by: of the next token that was looked up. parallel: confidence of the parallel token that may
  // come next; 0: none.
  Next next(Matched by, float parallel = 0);

  // A pass of the small model over `rows` rows, in a batch of `works` passes. Its tokens follow.
  void observe_pass(int rows, int works = 1);
  // Adds a token of that pass. False: its confidence is below `least`, or it is not worth its row
  // in the large model; drafting ends without it.
  bool add_small(float max_prob, float least = 0);
  // Adds a parallel token that no further pass confirmed. False: likewise.
  bool add_parallel(float max_prob, float least = 0);
  void add_lookup(Matched by);
  // Adds a token that a constraint forces. REQUIRES: all others before it are forced, too.
  void add_forced();
  // The round has only the first `drafts` of those that were added.
  void drop_to(int drafts) { drafts_.resize(static_cast<size_t>(drafts)); }

  // The large model accepted the first `accepted` drafts.
  void end_round(int accepted);

 private:
  double rate(int event) const { return acceptance_.rate(event, shared_.acceptance); }
  void observe(int event, bool accepted);
  double seconds_of_small(double rows) const;
  double tokens_per_second(const RecentRounds& rounds) const;
  RecentRounds rounds_with_small() const;
  double gain(const RecentRounds& with) const;  // seconds, of this request's rest
  bool pays(const RecentRounds& with) const { return gain(with) > 0; }
  void expect(const RecentRounds& mode);
  bool may_begin() const;
  bool masks_pay();
  bool begins_with_small();
  double catch_up() const;  // seconds
  void be_willing(bool on);
  void use_small(bool on);
  void be_active(bool on);
  bool goes_on();
  double lost(int tokens) const;  // seconds
  bool explores_small(const RecentRounds& with);
  double together(double drafting) const;
  double requests() const;  // on the device, now or in the last rounds
  bool alone() const;
  bool is_uncertain(int event) const;
  bool take(double seconds);  // out of the time to explore
  double worth() const;       // tokens that a second of rows must gain
  double row() const;
  double gain_of_small(double next, float parallel) const;  // next: probability of its token
  double gain_of_known(int token) const;                    // of a draft that costs only its row
  double gain_of_copy(int token) const;
  // What the small model's next token follows: a class, or the previous round.
  int context() const;
  bool continues_copy() const {
    return !drafts_.empty() && !DraftAcceptance::is_small(drafts_.back());
  }
  void add(int token);
  int copies(size_t drafts) const;
  void observe_copies(int accepted);

  const int most_;
  const By by_;
  const std::shared_ptr<AcceptanceStats> stats_;
  DraftStats& shared_;
  DraftAcceptance acceptance_;
  int after_ = DraftAcceptance::kAfterAll;  // the previous round
  int trial_ = 0;                           // rounds left in which the small model drafts anyway
  int made_ = 0, left_ = 0;                 // tokens
  int most_copied_ = kLeastCopied;
  bool on_trial_ = false;  // of the small model, which did not seem to pay; while alone
  bool copying_ = false;   // most drafts that the previous round accepted were look-ups

  // This round.
  Round now_;
  double best_ = 0;          // tokens per second; 0: unknown, or nothing takes time
  double without_ = 0;       // the same without the small model
  bool willing_ = false;     // to use the small model if all others do
  double drafting_ = 1;      // requests that use the small model, if this one does
  double sharing_ = 1;       // requests whose drafts share a batch of the small model
  double others_ = 0;        // rows of the large batch: those of the other requests
  int forced_ = 0;           // of these drafts
  std::vector<int> drafts_;  // classes of DraftAcceptance, or kForced
  double all_accepted_ = 1;  // probability
  int passes_ = 0;           // of the small model
  int pass_rows_ = 0;        // of these
  int of_pass_ = 0;          // tokens of the last one
  bool may_draft_ = false, parallel_ = false;
  bool active_ = false;    // may have another pass of the small model
  bool further_ = false;   // one draft more than pays
  bool reads_on_ = false;  // the small model was in use before this round
};

}  // namespace tandem
