// One admitted request on the loop: its tokens, caches, coroutine and accounts.
//
// Implements what a method sees (decode/gen.h). What needs the rest of the loop goes through
// RunHost. Loop thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/async/gate.h"
#include "engine/cache/sequence_cache.h"
#include "engine/decode/gen.h"
#include "engine/sched/fairness.h"
#include "engine/sched/flight.h"
#include "engine/sched/spec.h"

namespace tandem {

class SequenceRun;

// What a sequence asks of the loop.
class RunHost {
 public:
  virtual ~RunHost() = default;
  virtual TimePoint now() const = 0;  // one moment for all that happens in a step
  virtual ModelPools* pools(ModelId model) = 0;
  virtual DeviceId device_of(ModelId model) const = 0;
  virtual CacheId new_cache_id() = 0;
  virtual TicketId new_ticket_id() = 0;
  // True: the run's wanted() pages were granted at once.
  virtual bool ask_pages(SequenceRun* run) = 0;
  virtual void enqueue(PassFlight* flight) = 0;
  // A cache of `rows` rows to be was looked up in its prefix index, and `found` of them were there.
  virtual void prefix_looked_up(int64_t rows, int64_t found) = 0;
  virtual void tokens_emitted(SequenceRun* run, int64_t count) = 0;
  // The device of `then` makes no moves and runs no passes from here on until the device of `first`
  // has made the moves that were asked of it so far.
  virtual void order_moves(ModelId first, ModelId then) = 0;
};

class SequenceRun final : public Sequence {
 public:
  enum State {
    kWaiting,    // for admission
    kFollowing,  // admitted; for the prompt rows of its request's first choice
    kRunning,
    kPaused,  // for pages
    kHeld,    // for its reader
    kEnding,
  };

  SequenceRun(SequenceSpec spec, uint64_t order, RunHost* host);
  ~SequenceRun() override;

  const SequenceSpec& spec() const { return spec_; }
  uint64_t order() const { return order_; }  // smaller: older
  RequestId id() const { return spec_.id; }

  // Life. start() makes caches and coroutine; the caller makes it ready. drop_frame() destroys the
  // coroutine; release() gives all pages back. REQUIRES for release: no pass is with a device.
  std::coroutine_handle<> start();
  bool method_done() const { return task_.valid() && task_.done(); }
  void drop_frame() { task_.reset(); }
  void release();

  // A follower, another choice of the leader's request, begins with the rows of the prompt that the
  // leader's caches have, all but the last, shared and not copied: it runs the prompt's last row
  // itself, and all of what the leader lacks. REQUIRES: started, and has not been resumed yet; the
  // same prompt, roles and salt; the leader is at a round without passes under way and has not been
  // granted its pages, or it submits nothing any more.
  void take_over(SequenceRun& leader);

  // Takes over what the prefix caches know of what is wanted, into empty caches.
  void adopt();
  // KV pages of `pools` that the prompt and one more row need, less those that adopt() would find
  // in use by others.
  int64_t first_pages(const ModelPools& pools) const;

  // Reservations. The rows wanted are totals, so they stay right when an eviction empties a cache.
  // `lacking`: gets the pools that are short.
  bool can_grant(std::vector<const ModelPools*>* lacking = nullptr) const;
  void grant();
  std::coroutine_handle<> take_waiter() { return std::exchange(waiter_, nullptr); }
  bool holds_pages() const;
  bool holds_pages_of(std::span<const ModelPools* const> pools) const;
  bool shares_pools_with(const SequenceRun& other) const;
  // Adds the pages of these pools that the caches hold, with how often.
  using PageCounts = std::map<std::pair<const ModelPools*, PageId>, int>;
  void count_pages_of(std::span<const ModelPools* const> pools, PageCounts* counts) const;
  // Caches become empty; the method fills them again. Full pages stay in the prefix caches until
  // someone needs them.
  void evict();
  void add_caches_of(const ModelPools& pools, std::vector<const SequenceCache*>* caches) const;

  // Results of passes.
  void account_chunk(const PassFlight& flight, int batch_rows, Duration busy, bool last);
  void flight_done(PassFlight& flight);
  // Calls f with each pass whose values stay on a device: nobody may name them from here on.
  template <class F>
  void forget_shared(F f) {
    for (PassFlight* const flight : shared_) {
      f(*flight);
      flight->shared = false;
      reuse(flight);
    }
    shared_.clear();
  }
  SequenceEnd make_end(absl::Status status) const;
  bool ended() const { return ended_; }
  int64_t preemptions() const { return stats_.preemptions; }
  // In the order in which they were made.
  const std::vector<std::unique_ptr<SequenceCache>>& caches() const { return caches_; }
  void end_with(FinishReason reason) {
    ended_ = true;
    reason_ = reason;
  }

  // Sequence:
  const std::vector<Token>& tokens() const override { return tokens_; }
  Stage stage(Role role, int i) const override;
  int rows(Stage stage) const override;
  const Warp& warp() const override { return spec_.warp; }
  int top_logprobs() const override { return spec_.top_logprobs; }
  bool wants_logprobs() const override { return spec_.logprobs; }
  bool raw_logprobs() const override { return spec_.raw_logprobs; }
  MethodStats& stats() override { return stats_; }
  bool reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) override;
  Pass blank_pass() override;
  Flight* submit(Pass&& pass) override;
  void keep(CacheId cache, std::span<const Row> path) override;
  void truncate(CacheId cache, int at_most) override;
  CacheId fork(CacheId cache) override;
  void drop(CacheId cache) override;
  void copy(CacheId from, int begin, int end, CacheId to) override;
  bool ends(std::span<const Token> tentative) const override;
  bool is_end(Token token) const override;
  int end_tokens() const override;
  int remaining() const override;
  bool emit(std::vector<Emitted> tokens) override;

  State state = kWaiting;
  Gate gate;        // passes that a device works on
  int flights = 0;  // passes submitted and not done

  // The loop's books.
  RequestId request = 0;       // the id of its first choice
  Account* account = nullptr;  // its client's
  bool leads = false;          // other choices wait for its prompt rows
  bool reader_waits = false;   // stops at its next round
  TimePoint held_until = kNever;
  TimePoint stalled_at = kNever;  // its reader's patience ends

  TimePoint admitted_at{};
  TimePoint first_token_at = kNever;
  TimePoint last_token_at{};

 private:
  // What a round wants of one cache: `total` rows, and room for hidden states of the rows from
  // rows(frontier_to) to frontier_total.
  struct Want {
    SequenceCache* cache;
    int total;
    int frontier_to;
    int frontier_total;  // 0: none
    int adoptable;       // rows that may come from the prefix cache, where the cache is empty
    int adopted = 0;
    std::optional<uint64_t> looked_up;  // what version of the index
  };
  static PageNeed need_of(const Want& want);
  friend struct PassFlight;
  // Takes the memory of a flight that is over for the next one.
  void reuse(PassFlight* flight);
  Role role_of(const SequenceCache& cache, int to) const;
  SequenceCache* cache(CacheId id) const;
  SequenceCache* idle_cache(CacheId id) const;
  bool has_plain_role(CacheId id) const;
  void publish(size_t tokens);

  SequenceSpec spec_;
  const uint64_t order_;
  RunHost* const host_;
  const PrefixRoot prefix_root_;
  std::vector<Token> tokens_;
  std::vector<std::unique_ptr<SequenceCache>> caches_;  // few, and ascending by id
  std::vector<std::pair<Role, Stage>> stages_;
  std::vector<CacheId> taken_over_;  // caches with a leader's rows, before their first round
  Task<void> task_;
  std::vector<Want> wants_;
  std::coroutine_handle<> waiter_;
  bool granted_ = false;  // its first round

  bool ended_ = false;
  FinishReason reason_ = FinishReason::kMaxTokens;
  int stop_index_ = -1;
  int64_t emitted_ = 0;
  MethodStats stats_;
  double batch_rows_sum_ = 0;
  int64_t chunks_ = 0;
  std::vector<std::unique_ptr<PassFlight>> passes_;  // as many as there were at the same time
  std::vector<PassFlight*> spare_;                   // of these, those that are over
  std::vector<PassFlight*> shared_;                  // and those whose values stay on a device
};

}  // namespace tandem
