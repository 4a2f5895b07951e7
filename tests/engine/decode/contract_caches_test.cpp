// What methods may do with caches: layer ranges, forks, copies between devices; and score().
#include <cmath>

#include "engine/decode/score.h"
#include "tests/engine/decode/feeding.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::shared_ptr<Recorder> run(Box& box, SequenceSpec spec, std::function<Task<void>(Gen)> method) {
  spec.method = std::move(method);
  return box.submit(std::move(spec));
}

// --- Layers

// Brings rows to layer 1, some of them to 3, then all to the top; reads on the way.
Task<void> climb(Gen g, Answers* out) {
  const Stage top = g.stage(Role::kLarge);
  const Stage low{top.cache, 1}, middle{top.cache, 3};
  co_await g.round({{low, g.missing(low) + 3}, {top, g.missing(top) + 3}});
  Pass first = g.catch_up(low);
  first.reading(g.draw(last_rows(1, first.add.size())));
  Readout a = co_await g.submit(std::move(first));
  out->push_back(a.row[0].argmax);
  Pass more = feed(middle, {7});
  Read below;
  below.rows = {0};
  below.at = 2;
  more.reading(std::move(below));
  Readout b = co_await g.submit(std::move(more));
  out->push_back(b.row[0].argmax);
  out->push_back(b.row[1].argmax);
  Pass low_again = feed(low, {8});
  Readout c = co_await g.submit(std::move(low_again));
  out->push_back(c.row[0].argmax);
  Pass up = feed(top, {9});
  Read all;
  all.rows = {-1, -2, 0};  // the layer-1 row, the layer-3 row, the new one
  up.reading(std::move(all));
  Readout d = co_await g.submit(std::move(up));
  for (const Out& o : d.row) out->push_back(o.argmax);
}

TEST(ContractCaches, RowsContinueFromTheirLayer) {
  for (const int chunk : {1, 2, 100}) {
    BoxOptions o;
    o.limits.prefill_chunk_rows = chunk;
    Box box{o};
    Answers out;
    const std::vector<Token> p = {1, 2, 3, 4, 5, 6};
    SequenceSpec s = box.spec(p, 1);
    add_stages(s, ModelId(0), {1, 3});
    const auto r = run(box, std::move(s), [&out](Gen g) { return climb(g, &out); });
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    const auto answer = [&](const std::vector<Token>& more, int layers) {
      return best(box.config(), joined(p, more), layers);
    };
    EXPECT_EQ(out, (Answers{answer({}, 1), answer({7}, 3), answer({7}, 2), answer({7, 8}, 1),
                            answer({7, 8, 9}, 4), answer({7, 8}, 4), answer({7}, 4),
                            answer({7, 8, 9}, 4)}));
    box.expect_idle();
  }
}

// --- Forks

// Two continuations of one prompt, then a third of the second.
Task<void> branch(Gen g, Answers* out) {
  const Stage a = g.stage(Role::kLarge);
  co_await g.round({{a, g.missing(a)}});
  Readout r = co_await g.submit(g.catch_up(a));
  const Stage b{g.fork(a.cache), a.to};
  co_await g.round({{a, 3}, {b, 3}});
  Ticket ta = g.submit(feed(a, {1, 2, 3})), tb = g.submit(feed(b, {4, 5, 6}));
  Readout ra = co_await ta;
  out->push_back(ra.row[0].argmax);
  Readout rb = co_await tb;
  out->push_back(rb.row[0].argmax);
  const Stage c{g.fork(b.cache), a.to};
  g.truncate(b.cache, static_cast<int>(g.seq().size()) + 1);
  co_await g.round({{a, 1}, {b, 1}, {c, 1}});
  for (const Stage s : {a, b, c}) {
    Readout x = co_await g.submit(feed(s, {7}));
    out->push_back(x.row[0].argmax);
  }
}

TEST(ContractCaches, ForksShareTheirPastAndGoTheirWays) {
  for (int length = 1; length < 10; ++length) {
    Box box{BoxOptions()};
    Answers out;
    const std::vector<Token> p(static_cast<size_t>(length), 9);
    const auto r = run(box, box.spec(p, 1), [&out](Gen g) { return branch(g, &out); });
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    const auto answer = [&](const std::vector<Token>& more) {
      return best(box.config(), joined(p, more), 4);
    };
    EXPECT_EQ(out, (Answers{answer({1, 2, 3}), answer({4, 5, 6}), answer({1, 2, 3, 7}),
                            answer({4, 7}), answer({4, 5, 6, 7})}));
    box.expect_idle();
  }
}

// --- Copies between devices

// A worker on another device takes over the prompt's rows (with the frontier, if they stopped
// early) while the source continues at once: drops its last rows and writes others into their
// place.
Task<void> hand_over(Gen g, int to, Answers* out) {
  const Stage top = g.stage(Role::kLarge), worker = g.stage(Role::kWorker);
  const Stage low{top.cache, to}, worker_low{worker.cache, to};
  co_await g.round({{low, g.missing(low) + 2}});
  Readout a = co_await g.submit(g.catch_up(low));
  const int n = static_cast<int>(g.seq().size());
  co_await g.round({{low, 2}, {top, 2}, {worker_low, n}, {worker, n + 1}});
  for (int i = 0; i < 3; ++i) {
    g.truncate(worker.cache, 0);
    g.copy(top.cache, 0, n, worker.cache);
    g.truncate(top.cache, n - 1);
    Ticket here = g.submit(feed(low, {static_cast<Token>(20 + i)}));
    Readout there = co_await g.submit(feed(worker, {7}));
    out->push_back(there.row[0].argmax);
    Readout h = co_await here;
    out->push_back(h.row[0].argmax);
  }
}

Task<void> look_up(Gen g, std::vector<int>* out) {
  const Stage a = g.stage(Role::kLarge);
  out->push_back(g.cached(a));
  co_await g.round({{a, g.missing(a)}});
  out->push_back(g.rows(a));
  co_await g.submit(g.catch_up(a));
}

TEST(ContractCaches, AnEmptyCacheGetsItsCachedRowsInTheNextRound) {
  Box box{BoxOptions()};
  const std::vector<Token> p(40, 9);
  std::vector<int> out;
  for (int i = 0; i < 2; ++i) {
    const auto r = run(box, box.spec(p, 1), [&out](Gen g) { return look_up(g, &out); });
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
  }
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
  EXPECT_GT(out[2], 30);
  EXPECT_EQ(out[3], out[2]);
}

TEST(ContractCaches, CopiesBetweenDevicesAreInOrder) {
  for (const int to : {4, 2}) {
    for (const bool source_is_slow : {false, true}) {
      BoxOptions o;
      o.models.resize(2);
      o.models[1].device = 1;
      o.models[source_is_slow ? 0 : 1].config.pass_seconds = 1;
      Box box{o};
      Answers out;
      SequenceSpec s = box.spec({1, 2, 3, 4, 5, 6}, 1);
      edit_cast(s).roles.push_back({Role::kWorker, ModelId(1), 0});
      for (const int model : {0, 1}) add_stages(s, ModelId(model), {to});
      SequenceSpec busy = box.spec({1}, 8);  // keeps the worker's device busy
      busy.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
      const auto other = box.submit(std::move(busy));
      const auto r = run(box, std::move(s), [&out, to](Gen g) { return hand_over(g, to, &out); });
      box.pump();
      ASSERT_TRUE(r->ok()) << r->end.status;
      EXPECT_TRUE(other->ok());
      std::vector<Token> p = {1, 2, 3, 4, 5, 6};
      Answers expected;
      for (int i = 0; i < 3; ++i) {
        expected.push_back(best(box.config(), joined(p, {7}), 4));
        p.back() = 20 + i;
        expected.push_back(best(box.config(), p, to));
      }
      EXPECT_EQ(out, expected) << "to " << to;
      box.expect_idle();
    }
  }
}

// In both directions at once, with compaction before: no deadlock.
Task<void> exchange(Gen g, Answers* out) {
  const Stage a = g.stage(Role::kLarge), b = g.stage(Role::kWorker);
  const int n = static_cast<int>(g.seq().size());
  co_await g.round({{a, n + 6}, {b, n + 6}});
  g.submit(g.catch_up(a));
  Readout ready = co_await g.submit(g.catch_up(b));
  for (int i = 0; i < 4; ++i) {
    for (const Stage s : {a, b}) {
      Pass p;
      p.stage = s;
      for (Token t : {10, 11, 12}) p.add.add(token_in(t), -1);
      Readout r = co_await g.submit(std::move(p));
      g.retain(s.cache, std::vector<Row>{s.cache == a.cache ? 2 : 1});
    }
    g.truncate(b.cache, n);
    g.copy(a.cache, n, n + 1, b.cache);
    g.truncate(a.cache, n - 1);
    g.copy(b.cache, n - 1, n + 1, a.cache);
    Ticket ta = g.submit(feed(a, {1})), tb = g.submit(feed(b, {2}));
    Readout ra = co_await ta;
    Readout rb = co_await tb;
    out->push_back(ra.row[0].argmax);
    out->push_back(rb.row[0].argmax);
    g.truncate(a.cache, n);
    g.truncate(b.cache, n);
  }
}

TEST(ContractCaches, CopiesInBothDirections) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].device = 1;
  Box box{o};
  Answers out;
  SequenceSpec s = box.spec({1, 2, 3}, 1);
  edit_cast(s).roles.push_back({Role::kWorker, ModelId(1), 0});
  const auto r = run(box, std::move(s), [&out](Gen g) { return exchange(g, &out); });
  box.pump();
  ASSERT_TRUE(r->ok());
  Answers expected;
  for (int i = 0; i < 4; ++i) {
    for (const Token t : {1, 2}) expected.push_back(best(box.config(), {1, 2, 3, 12, t}, 4));
  }
  EXPECT_EQ(out, expected);
  box.expect_idle();
}

// --- Cross-attention

// A pass whose memory is still being filled, in several chunks, waits for it.
Task<void> remember(Gen g, bool wait, Answers* out) {
  const Stage a = g.stage(Role::kLarge);
  co_await g.round({{a, g.missing(a)}});
  Readout r = co_await g.submit(g.catch_up(a));
  const Stage memory{g.fork(a.cache), a.to};
  co_await g.round({{a, 3}, {memory, 9}});
  Ticket filled = g.submit(feed(memory, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  if (wait) Readout f = co_await filled;
  Pass p = feed(a, {7});
  p.memory = memory.cache;
  Readout with = co_await g.submit(std::move(p));
  out->push_back(with.row[0].argmax);
  Readout without = co_await g.submit(feed(a, {0}));
  out->push_back(without.row[0].argmax);
}

TEST(ContractCaches, AMemoryIsCompleteBeforeItIsRead) {
  Answers out[2];
  for (const bool wait : {false, true}) {
    BoxOptions o;
    o.limits.prefill_chunk_rows = 2;
    o.limits.step_rows = 3;
    Box box{o};
    Answers* to = &out[wait];
    const auto r = run(box, box.spec({1, 2, 3}, 1), [=](Gen g) { return remember(g, wait, to); });
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    EXPECT_NE((*to)[0], best(box.config(), {1, 2, 3, 7}, 4)) << "the memory is seen";
    EXPECT_EQ((*to)[1], best(box.config(), {1, 2, 3, 7, 0}, 4));
    box.expect_idle();
  }
  EXPECT_EQ(out[0], out[1]);
}

// --- score

TEST(Score, IsTheLogProbabilityOfEachToken) {
  for (const int chunk : {1, 3, 100}) {
    BoxOptions o;
    o.limits.prefill_chunk_rows = chunk;
    Box box{o};
    const std::vector<Token> p = {5, 6, 7, 8, 9, 10, 11};
    std::vector<Scored> scored;
    const auto r = run(box, box.spec(p, 0), [&](Gen g) { return score(g, 2, 3, &scored); });
    box.pump();
    ASSERT_TRUE(r->ok());
    EXPECT_TRUE(r->tokens.empty());
    ASSERT_EQ(scored.size(), 5U);
    for (size_t i = 0; i < scored.size(); ++i) {
      const std::vector<Token> before(p.begin(), p.begin() + 2 + static_cast<ptrdiff_t>(i));
      const auto logits = fake::logits_after(box.config(), before, 4);
      double total = 0;
      for (const float l : logits) total += std::exp(double{l});
      EXPECT_NEAR(scored[i].logprob, logits[static_cast<size_t>(p[i + 2])] - std::log(total), 1e-4);
      ASSERT_EQ(scored[i].top.size(), 3U);
      EXPECT_EQ(scored[i].top[0].token, best(box.config(), before, 4));
      EXPECT_NEAR(scored[i].top[0].logprob,
                  logits[static_cast<size_t>(scored[i].top[0].token)] - std::log(total), 1e-4);
    }
  }
}

}  // namespace
}  // namespace tandem::test
