// Order of service, preemption, and progress of all sequences.
#include "engine/sched/page_queue.h"

#include "tests/engine/decode/sketches.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

// --- Needs of several caches

// Two forks that share a half-full last page and continue: one copies the page, the other then owns
// it alone and writes in place.
Task<void> forks(Gen g, int* granted) {
  const Stage a = g.stage(Role::kLarge);
  co_await g.round({{a, g.missing(a)}});
  Readout r = co_await g.submit(g.catch_up(a));
  const Stage b{g.fork(a.cache), a.to};
  co_await g.round({{a, 1}, {b, 1}});
  ++*granted;
  for (const Stage s : {a, b}) {
    Pass p;
    p.stage = s;
    p.add.chain(token_in(1));
    Readout x = co_await g.submit(std::move(p));
  }
  const Stage c{g.fork(b.cache), b.to};
  co_await g.round({{b, 1}, {c, 1}});
  ++*granted;
}

TEST(PageQueue, ForksThatShareAPageNeedOneCopyLess) {
  for (const int64_t pages : {2, 3, 4}) {
    BoxOptions o;
    o.models[0].pool.pages = pages;
    o.models[0].prefix_cache = false;
    Box box{o};
    int granted = 0;
    SequenceSpec s = box.spec({1, 2, 3, 4, 5, 6}, 1);  // a page, and half of one
    s.method = [&granted](Gen g) { return forks(g, &granted); };
    const auto r = box.submit(std::move(s));
    box.pump();
    EXPECT_EQ(granted, std::max<int64_t>(0, pages - 2)) << pages;
    EXPECT_EQ(r->ok(), pages == 4) << r->end.status;
    box.expect_idle();
  }
}

// --- Several caches of a request

TEST(PageQueue, ARoundGetsAllItsPagesOrNone) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(2);
  o.models[1].pool.pages = 5;
  Box box{o};
  SequenceSpec large = box.spec({1, 2, 3, 4}, 30), pair = box.spec({5, 6, 7, 8}, 8);
  large.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  large.stops.max_new_tokens = 12;
  edit_cast(pair).roles.push_back({Role::kSmall, ModelId(1), 0});
  SketchStats stats;
  pair.method = [&stats](Gen g) { return bild(g, {3, 0.1F, 0.69F}, &stats); };
  const auto a = box.submit(std::move(large));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() == 9; }));  // four pages of five
  const auto b = box.submit(std::move(pair));
  box.loop->step();
  EXPECT_EQ(b->admitted, 0) << "its small cache has no room";
  EXPECT_EQ(box.pools(0).kv.used(), 0) << "so its large one takes none";
  box.pump();
  EXPECT_EQ(a->tokens, box.greedy({1, 2, 3, 4}, 12, 1));
  EXPECT_EQ(b->tokens, box.greedy({5, 6, 7, 8}, 8));
  box.expect_idle();
}

// Two requests could deadlock, each with the pages that the other needs.
TEST(PageQueue, RequestsWithTwoCachesDoNotBlockEachOther) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 rng(seed);
    BoxOptions o;
    o.shuffle = seed;
    o.limits.preemption = seed % 2 ? Preemption::kYoungest : Preemption::kLowestPriority;
    o.models.resize(2);
    o.models[1].config = tiny_model(2);
    o.models[1].device = static_cast<int>(seed / 2 % 2);
    for (BoxModel& m : o.models) {
      m.pool.pages = 8 + static_cast<int64_t>(rng() % 3);  // one needs 8: 8 + 20 tokens, 3 drafts
      m.prefix_cache = seed % 3 > 0;
    }
    Box box{o};
    SketchStats stats;
    std::vector<std::pair<std::vector<Token>, std::shared_ptr<Recorder>>> all;
    for (int i = 0; i < 6; ++i) {
      const auto prompt = random_prompt(rng, 1, 8);
      SequenceSpec s = box.spec(prompt, 20);
      s.priority = static_cast<int>(rng() % 3);
      const bool swapped = i % 2 > 0;  // its large model is the other one's small one
      s.cast = make_cast({{Role::kLarge, ModelId(swapped ? 1 : 0), 0},
                          {Role::kSmall, ModelId(swapped ? 0 : 1), 0}});
      if (rng() % 2) {
        s.method = [&stats](Gen g) { return bild(g, {3, 0.1F, 0.69F}, &stats); };
      } else {
        s.method = [&stats](Gen g) { return speculative(g, 3, &stats); };
      }
      all.emplace_back(prompt, box.submit(std::move(s)));
    }
    int ticks = 0;
    while (box.tick() && ++ticks < 100'000) {
    }
    EXPECT_LT(ticks, 100'000);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(all[i].second->ok()) << seed << ": " << all[i].second->end.status;
      EXPECT_EQ(all[i].second->tokens, box.greedy(all[i].first, 20, i % 2 ? 1 : 0));
    }
    EXPECT_GT(box.metrics.preemptions.value(), 0);
    box.expect_idle();
    if (testing::Test::HasFailure()) return;
  }
}

// --- Victims

// Three requests fill the pool equally and need another page at the same time. Returns which were
// preempted.
std::vector<bool> victims(Preemption policy, const std::vector<int>& priorities) {
  BoxOptions o;
  o.limits.preemption = policy;
  o.models[0].pool.pages = 9;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> all;
  for (const int priority : priorities) {
    const auto i = static_cast<Token>(all.size());
    SequenceSpec s = box.spec({i, 1, 2, 3, 4, 5, 6}, 9);  // 2 pages at first, 4 in the end
    s.priority = priority;
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  std::vector<bool> preempted;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]->tokens, box.greedy({static_cast<Token>(i), 1, 2, 3, 4, 5, 6}, 9));
    EXPECT_LE(all[i]->end.stats.preemptions, 1);
    preempted.push_back(all[i]->end.stats.preemptions > 0);
  }
  box.expect_idle();
  return preempted;
}

TEST(PageQueue, TheVictimIsChosenByThePolicy) {
  using Evicted = std::vector<bool>;
  const auto lowest = Preemption::kLowestPriority, youngest = Preemption::kYoungest;
  EXPECT_EQ(victims(lowest, {2, 0, 1}), (Evicted{false, true, false}));
  EXPECT_EQ(victims(lowest, {0, 1, 2}), (Evicted{true, false, false}));
  EXPECT_EQ(victims(lowest, {1, 1, 1}), (Evicted{false, false, true}));
  for (const auto& priorities : {std::vector{2, 0, 1}, {0, 1, 2}, {1, 1, 1}}) {
    EXPECT_EQ(victims(youngest, priorities), (Evicted{false, false, true}));
  }
}

// --- Rows between two layers

// Runs its prompt through half of the layers, then the rest.
Task<void> in_two_steps(Gen g) {
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  co_await g.round({{S, g.missing(S)}, {L, g.missing(L)}});
  Readout lower = co_await g.submit(g.catch_up(S));
  Pass p = g.catch_up(L);
  p.reading(g.draw({-1}));
  Readout r = co_await g.submit(std::move(p));
  g.emit(g.emitted(r.row[0]));
}

// Frontier pages are short: sequences without any are not preempted.
TEST(PageQueue, OnlyHoldersOfTheMissingPagesAreEvicted) {
  BoxOptions o;
  o.models[0].pool = {4, 64, 3};  // of two that one of them wants
  o.limits.slow_reader_hold_seconds = 100;
  Box box{o};
  const auto reads_slowly = box.submit(box.spec({1, 2, 3}, 9));
  ASSERT_TRUE(box.pump_until([&] { return reads_slowly->tokens.size() == 2; }));
  box.loop->pause(box.last_id);
  box.loop->step();
  std::vector<std::shared_ptr<Recorder>> both;
  for (int i = 0; i < 2; ++i) {
    SequenceSpec s = box.spec({1, 2, 3, 4, 5, 6, 7, 8}, 1);
    edit_cast(s).roles.push_back({Role::kSmall, ModelId(0), 2});
    s.method = in_two_steps;
    both.push_back(box.submit(std::move(s)));
  }
  ASSERT_TRUE(box.pump_until([&] { return both[0]->ends + both[1]->ends == 2; }));
  EXPECT_TRUE(both[0]->ok() && both[1]->ok());
  box.loop->resume(1);
  box.pump();
  ASSERT_TRUE(reads_slowly->ok()) << reads_slowly->end.status;
  EXPECT_EQ(reads_slowly->end.stats.preemptions, 0);
  box.expect_idle();
}

// --- Shared pages

// A loop without devices: passes complete at once, and coroutines are not resumed.
class Desk final : public LoopServices {
 public:
  explicit Desk(int64_t pages) : pools_(ModelId(0), shape(), {4, pages, pages}, &log_) {}
  ~Desk() override {
    runs.clear();
    EXPECT_EQ(pools_.kv.used(), 0);
  }

  TimePoint now() const override { return {}; }
  ModelPools* pools(ModelId) override { return &pools_; }
  DeviceId device_of(ModelId) const override { return DeviceId(0); }
  CacheId new_cache_id() override { return CacheId(next_++); }
  TicketId new_ticket_id() override { return static_cast<TicketId>(++next_); }
  bool request_pages(SequenceRun* run) override { return queue.request(run); }
  void enqueue(PassFlight* flight) override { flight->sequence->flight_done(*flight); }
  void prefix_looked_up(int64_t, int64_t) override {}
  void tokens_emitted(SequenceRun*, int64_t) override {}
  int64_t begin(std::shared_ptr<Transfer>) override { return 0; }

  // A sequence that runs its prompt and then needs `more` rows.
  SequenceRun* add(int priority, std::vector<Token> prompt, int more) {
    SequenceSpec s;
    s.id = runs.size() + 1;
    s.prompt = std::move(prompt);
    s.cast = make_cast({{Role::kLarge, ModelId(0), 0}});
    s.priority = priority;
    s.method = [more](Gen g) { return runs_and_wants(g, more); };
    LoopServices* const host = this;
    runs.push_back(std::make_unique<SequenceRun>(std::move(s), runs.size(), host));
    runs.back()->enter(SequenceRun::kRunning);
    begin_.push_back(runs.back()->start());
    return runs.back().get();
  }
  // True: its round was granted.
  bool go(SequenceRun* run) {
    begin_[run->id() - 1].resume();
    return run->state() == SequenceRun::kRunning;
  }
  static void end(SequenceRun* run) {
    run->enter(SequenceRun::kEnding);
    run->drop_frame();
    run->release();
  }
  PageQueue::Served serve() {
    return queue.serve([this](const SequenceRun& run, const std::vector<const PagePool*>& p) {
      return std::any_of(runs.begin(), runs.end(), [&](const auto& r) {
        return r.get() != &run && r->state() != SequenceRun::kPaused &&
               r->caches().holds_pages_of(p);
      });
    });
  }
  const PagePool& kv() const { return pools_.kv; }

  PageQueue queue;
  std::vector<std::unique_ptr<SequenceRun>> runs;

 private:
  static ModelShape shape() {
    ModelShape s;
    s.layers = 4;
    return s;
  }
  static Task<void> runs_and_wants(Gen g, int more) {
    const Stage L = g.stage(Role::kLarge);
    co_await g.round({{L, g.missing(L)}});
    Readout r = co_await g.submit(g.catch_up(L));
    co_await g.round({{L, more}});
    co_await std::suspend_always();
  }

  std::vector<Move> log_;
  ModelPools pools_;
  int64_t next_ = 0;
  std::vector<std::coroutine_handle<>> begin_;
};

const std::vector<Token> kEight = {1, 2, 3, 4, 5, 6, 7, 8}, kNine = {1, 2, 3, 4, 5, 6, 7, 8, 9};

TEST(PageQueue, AVictimThatFreesNothingStays) {
  Desk desk(6);
  SequenceRun* leader = desk.add(0, kNine, 0);
  SequenceRun* passing = desk.add(9, {1}, 0);
  SequenceRun* own = desk.add(1, {9, 8, 7, 6, 5, 4}, 4);
  SequenceRun* first = desk.add(2, {4, 3, 2, 1}, 1);
  SequenceRun* follower = desk.add(-1, kNine, 0);
  EXPECT_TRUE(desk.go(leader));   // has three pages, of which two will be its follower's too
  EXPECT_TRUE(desk.go(passing));  // has one
  EXPECT_FALSE(desk.go(own));     // has two, and wants another
  desk.end(passing);
  EXPECT_FALSE(desk.go(first));  // has one, and wants another
  follower->adopt(*leader);
  EXPECT_FALSE(desk.go(follower));  // wants one for its last row
  ASSERT_EQ(desk.kv().available(), 0);
  const PageQueue::Served served = desk.serve();
  EXPECT_EQ(served.granted, std::vector<SequenceRun*>{first});
  EXPECT_EQ(served.preempted, 1);
  EXPECT_EQ(own->accounts().stats().preemptions, 1);
  EXPECT_EQ(follower->accounts().stats().preemptions, 0) << "the leader would keep its pages";
  EXPECT_TRUE(served.hopeless.empty());
}

TEST(PageQueue, SequencesThatShareAreEvictedTogether) {
  Desk desk(3);
  SequenceRun* passing = desk.add(9, {1}, 0);
  SequenceRun* leader = desk.add(0, kEight, 1);
  SequenceRun* follower = desk.add(-1, kEight, 0);
  SequenceRun* first = desk.add(1, {9, 8, 7, 6}, 1);
  EXPECT_TRUE(desk.go(passing));
  EXPECT_FALSE(desk.go(leader));
  follower->adopt(*leader);
  EXPECT_FALSE(desk.go(follower));  // both pages are the leader's as well
  desk.end(passing);
  EXPECT_FALSE(desk.go(first));
  ASSERT_EQ(desk.kv().available(), 0);
  const PageQueue::Served served = desk.serve();
  EXPECT_EQ(served.granted, std::vector<SequenceRun*>{first});
  EXPECT_EQ(served.preempted, 2);
  EXPECT_EQ(leader->accounts().stats().preemptions + follower->accounts().stats().preemptions, 2);
}

// The head shares all pages with others: preempting them frees nothing.
TEST(PageQueue, AnImpossibleNeedEvictsNoSequence) {
  Desk desk(3);
  SequenceRun* leader = desk.add(1, kNine, 4 * 4);
  SequenceRun* follower = desk.add(0, kNine, 0);
  EXPECT_FALSE(desk.go(leader));
  follower->adopt(*leader);
  EXPECT_FALSE(desk.go(follower));
  const PageQueue::Served served = desk.serve();
  EXPECT_EQ(served.hopeless, std::vector<SequenceRun*>{leader});
  EXPECT_EQ(served.preempted, 0);
}

}  // namespace
}  // namespace tandem::test
