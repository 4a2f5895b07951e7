// Rows that go between caches of different devices and depths, and who waits for them.
#include "tests/engine/decode/feeding.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

// Main on device 0; on device 1 a worker that has main's first `layers` layers.
BoxOptions main_and_worker(int layers, bool retains_top_hidden = false) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(1, layers);
  o.models[1].device = 1;
  o.models[1].pool.retains_top_hidden = retains_top_hidden;
  return o;
}

SequenceSpec with_worker(Box& box, std::vector<Token> prompt) {
  SequenceSpec s = box.spec(std::move(prompt), 1);
  edit_cast(s).roles.push_back({Role::kWorker, ModelId(1), 0});
  return s;
}

// --- Depths

// The worker runs the first layers of the prompt and main the others; then main a whole row, which
// the worker needs before its next.
Task<void> share_the_layers(Gen g, Answers* out) {
  const Stage top = g.stage(Role::kLarge), worker = g.stage(Role::kWorker);
  const Stage low{top.cache, worker.to};
  const int n = static_cast<int>(g.seq().size());
  for (int i = 0; i < 2; ++i) {
    co_await g.round({{worker, n + 2}, {low, n + 2}, {top, n + 2}});
    Readout first = co_await g.submit(g.catch_up(worker));
    g.copy(worker.cache, 0, n, top.cache);
    Pass rest;
    rest.stage = top;
    rest.reading({.rows = {-1, -2}});
    Readout a = co_await g.submit(std::move(rest));
    for (const Out& o : a.row) out->push_back(o.argmax);
    Readout b = co_await g.submit(feed(top, {7}));
    out->push_back(b.row[0].argmax);
    g.copy(top.cache, n, n + 1, worker.cache);
    Readout c = co_await g.submit(feed(worker, {8}));
    out->push_back(c.row[0].argmax);
    g.copy(worker.cache, n + 1, n + 2, top.cache);
    Pass last;
    last.stage = top;
    last.reading({.rows = {-1}});
    Readout d = co_await g.submit(std::move(last));
    out->push_back(d.row[0].argmax);
    for (const Stage s : {top, worker}) g.truncate(s.cache, 0);
  }
}

TEST(ContractTransfers, RowsGoBetweenDepths) {
  for (const int chunk : {1, 3, 100}) {
    BoxOptions o = main_and_worker(2, /*retains_top_hidden=*/true);
    o.limits.prefill_chunk_rows = chunk;
    Box box{o};
    Answers out, expected;
    SequenceSpec s = with_worker(box, {1, 2, 3, 4, 5, 6});
    s.method = [&out](Gen g) { return share_the_layers(g, &out); };
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    for (int i = 0; i < 2; ++i) {
      for (const std::vector<Token>& seen :
           {std::vector<Token>{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6, 7}}) {
        expected.push_back(best(box.config(), seen, 4));
      }
      expected.push_back(best(box.config(), {1, 2, 3, 4, 5, 6, 7, 8}, 2));
      expected.push_back(best(box.config(), {1, 2, 3, 4, 5, 6, 7, 8}, 4));
    }
    EXPECT_EQ(out, expected);
    box.expect_idle();
  }
}

// --- Who waits

// Each token goes to the worker, which looks at it too.
Task<void> look_twice(Gen g, int tokens) {
  const Stage top = g.stage(Role::kLarge), worker = g.stage(Role::kWorker);
  for (int i = 0; i < tokens; ++i) {
    co_await g.round({{top, g.missing(top) + 1}, {worker, g.missing(worker) + 2}});
    const int have = static_cast<int>(g.seq().size()) - g.missing(worker);
    Pass p = g.catch_up(top);
    p.reading(g.draw(last_rows(1, p.add.size())));
    Readout r = co_await g.submit(std::move(p));
    g.copy(top.cache, have, static_cast<int>(g.seq().size()), worker.cache);
    Ticket second = g.submit(feed(worker, {r.row[0].token}));
    g.emit(g.emitted(r.row[0]));
    Readout s = co_await second;
    g.truncate(worker.cache, static_cast<int>(g.seq().size()) - 1);
  }
}

// When main's other request has all its tokens.
TimePoint others_end(double worker_seconds) {
  BoxOptions o = main_and_worker(4);
  o.models[1].config.pass_seconds = worker_seconds;
  Box box{o};
  SequenceSpec s = with_worker(box, {1, 2, 3});
  s.stops.max_new_tokens = 100;
  s.method = [](Gen g) { return look_twice(g, 20); };
  const auto a = box.submit(std::move(s));
  const auto b = box.submit(box.spec({4, 5, 6}, 40));
  EXPECT_TRUE(box.pump_until([&] { return b->ends > 0; }));
  EXPECT_TRUE(b->ok());
  const TimePoint end = box.clock.now();
  box.pump();
  EXPECT_TRUE(a->ok()) << a->end.status;
  EXPECT_EQ(a->tokens, box.greedy({1, 2, 3}, 20));
  box.expect_idle();
  return end;
}

TEST(ContractTransfers, ASlowWorkerCostsOthersNothing) {
  const TimePoint fast = others_end(0.001), slow = others_end(0.1);
  EXPECT_LE(slow, fast) << "it has main more for itself";
}

// --- Pages

// Its rows go to a worker that is busy for long; then it ends.
Task<void> hand_over_and_end(Gen g) {
  const Stage top = g.stage(Role::kLarge), worker = g.stage(Role::kWorker);
  co_await g.round({{top, g.missing(top)}, {worker, g.missing(worker)}});
  Readout r = co_await g.submit(g.catch_up(top));
  g.copy(top.cache, 0, static_cast<int>(g.seq().size()), worker.cache);
}

TEST(ContractTransfers, PagesOfACopyComeBackWhenItIsMade) {
  BoxOptions o = main_and_worker(4);
  o.models[0].pool = {4, 5, 5};  // most of main's memory is on its way
  o.models[1].config.pass_seconds = 1;
  Box box{o};
  SequenceSpec busy = box.spec({1}, 2);
  busy.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  const auto other = box.submit(std::move(busy));
  SequenceSpec s = with_worker(box, std::vector<Token>(16, 3));
  s.stops.max_new_tokens = 0;
  s.prefix_cache = false;
  s.method = hand_over_and_end;
  const auto a = box.submit(std::move(s));
  ASSERT_TRUE(box.pump_until([&] { return a->ends > 0; }));
  EXPECT_TRUE(a->ok());
  box.loop->step();
  EXPECT_EQ(box.loop->live(), 1) << "the other one";
  EXPECT_EQ(box.pools().kv.pinned(), 4);
  EXPECT_EQ(box.pools().kv.available(), 1);
  EXPECT_EQ(box.loop->check_pages(), "");
  const auto b = box.submit(box.spec({4, 5, 6}, 10));  // waits, and is not hopeless
  box.pump();
  EXPECT_TRUE(b->ok()) << b->end.status;
  EXPECT_EQ(b->tokens, box.greedy({4, 5, 6}, 10));
  EXPECT_TRUE(other->ok());
  EXPECT_EQ(box.pools().kv.pinned(), 0);
  box.expect_idle();
}

// A lost device makes no moves and keeps no pages.
TEST(ContractTransfers, ALostWorkerGivesPagesBack) {
  BoxOptions o = main_and_worker(4);
  o.models[1].config.pass_seconds = 1;
  Box box{o};
  box.backends[1].set_faults([](const Batch&) {
    return Fault{absl::UnavailableError("gone"), {}, Duration(1'000'000'000)};
  });
  SequenceSpec busy = box.spec({1}, 2);
  busy.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  box.submit(std::move(busy));
  SequenceSpec s = with_worker(box, std::vector<Token>(16, 3));
  s.method = hand_over_and_end;
  const auto a = box.submit(std::move(s));
  const auto b = box.submit(box.spec({4, 5, 6}, 10));
  box.pump();
  EXPECT_EQ(a->ends, 1);
  EXPECT_TRUE(b->ok());
  EXPECT_EQ(box.pools().kv.pinned(), 0);
  EXPECT_EQ(box.used_pages(), 0);
}

}  // namespace
}  // namespace tandem::test
