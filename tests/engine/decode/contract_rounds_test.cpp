// What methods may rely on about rounds: reservations, unawaited tickets, and values that
// stay on devices.
#include "tests/engine/decode/pairs.h"
#include "tests/engine/decode/sketches.h"

namespace tandem::test {
namespace {

// --- Reservations

Task<void> wants(Gen g, int rows) {
  const Stage L = g.stage(Role::kLarge);
  co_await g.round({{L, rows}});
  std::vector<Emitted> out{Emitted{1, {}, kUnset, {}}};
  g.emit(std::move(out));
}

// A need that its pool can never meet ends the request and blocks no other.
TEST(ContractRounds, ImpossibleNeedsAreRefused) {
  BoxOptions o;
  o.models[0].pool.pages = 4;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> all;
  for (const int rows : {16, 17, 5}) {
    SequenceSpec s = box.spec({1}, 1);
    s.method = [rows](Gen g) { return wants(g, rows); };
    all.push_back(box.submit(std::move(s)));
  }
  const auto ar = box.submit(box.spec({1, 2}, 14));
  box.pump();
  EXPECT_TRUE(all[0]->ok());
  EXPECT_EQ(all[1]->end.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(all[2]->ok());
  EXPECT_EQ(ar->tokens, box.greedy({1, 2}, 14));
  box.expect_idle();
}

// Two stages of one cache want the same pages: they count once.
TEST(ContractRounds, EarlyExitNeedsItsPagesOnce) {
  BoxOptions o;
  o.models[0].pool = {4, 5, 5};  // 20 rows
  Box box{o};
  SketchStats stats;
  SequenceSpec s = box.spec({1, 2, 3, 4}, 12);  // 4 + 12 + a run of 4
  s.cast = make_cast(early_exit(2));
  s.method = [&stats](Gen g) { return bild(g, {4, 0, 0.69F}, &stats); };
  const auto r = box.submit(std::move(s));
  box.pump();
  EXPECT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(r->tokens, box.greedy({1, 2, 3, 4}, 12));
}

// Rows come and go within a round; its pages stay, however many others want them.
Task<void> restless(Gen g) {
  const Stage L = g.stage(Role::kLarge);
  for (;;) {
    co_await g.round({{L, g.missing(L) + 6}});
    for (int i = 0; i < 3; ++i) {
      Pass tree = g.catch_up(L);
      const Row root = static_cast<Row>(tree.add.size()) - 1;
      for (Token t : {1, 2, 3}) tree.add.add(token_in(t), root);
      Readout r = co_await g.submit(std::move(tree));
      g.truncate(L.cache, static_cast<int>(g.seq().size()) - 1);
    }
    Pass p = g.catch_up(L);
    p.reading(g.draw(last_rows(1, p.add.size())));
    Readout r = co_await g.submit(std::move(p));
    std::vector<Emitted> out{g.emitted(r.row[0])};
    if (g.emit(std::move(out))) co_return;
  }
}

TEST(ContractRounds, AReservationLastsForItsRound) {
  BoxOptions o;
  o.models[0].pool.pages = 12;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 6; ++i) {
    SequenceSpec s = box.spec({i, 2, 3}, 12);
    if (i % 2) s.method = restless;
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(all[static_cast<size_t>(i)]->tokens, box.greedy({i, 2, 3}, 12)) << i;
  }
  EXPECT_GT(box.metrics.preemptions.value(), 0);
  box.expect_idle();
}

// --- Tickets and values

// Starts drafts that it never reads, and starts the next round at once.
Task<void> careless(Gen g) {
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  for (;;) {
    co_await g.round({{S, g.missing(S) + 4}, {L, g.missing(L)}});
    Pass p = g.catch_up(S);
    Read read = g.draw(last_rows(1, p.add.size()));
    read.keep = true;
    p.reading(std::move(read));
    p.share = true;
    Ticket draft = g.submit(std::move(p));
    for (int i = 0; i < 2; ++i) {
      Pass next;
      next.stage = S;
      next.add.chain(draft.chosen(0));
      next.reading(g.draw({0}));
      next.share = true;
      Ticket more = g.submit(std::move(next));
      draft = std::move(more);
    }
    co_await g.round({{L, g.missing(L)}});  // the drafts are still under way
    Pass check = g.catch_up(L);
    check.reading(g.draw(last_rows(1, check.add.size())));
    Readout r = co_await g.submit(std::move(check));
    Pass last;  // waits for the drafts before it
    last.stage = S;
    last.add.chain(token_in(0));
    Readout done = co_await g.submit(std::move(last));
    std::vector<Emitted> out{g.emitted(r.row[0])};
    if (g.emit(std::move(out))) co_return;
    g.truncate(S.cache, static_cast<int>(g.seq().size()) - 1);
  }
}

TEST(ContractRounds, UnawaitedTicketsLeaveNothing) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    BoxOptions o;
    o.models.resize(2);
    o.models[1].config = tiny_model(2, 2);
    o.models[1].device = static_cast<int>(seed % 2);
    o.models[1].config.pass_seconds = seed % 3 ? 0.01 : 0.0001;
    o.limits.prefill_chunk_rows = 3;  // drafts wait for all chunks of the first one
    for (BoxModel& m : o.models) m.pool = {4, seed % 4 ? 100 : 8, 8};
    o.shuffle = seed;
    Box box{o};
    std::vector<std::shared_ptr<Recorder>> all;
    const auto submit = [&](int i, int n) {
      SequenceSpec s = box.spec({i, 2, 3, 4, 5, 6, 7, 8}, n);
      s.cast = make_cast(two_models());
      s.method = careless;
      all.push_back(box.submit(std::move(s)));
    };
    for (int i = 0; i < 4; ++i) submit(i, 8);
    if (seed % 5 == 0) {
      box.pump_until([&] { return all[1]->tokens.size() == 3; });
      box.loop->stop(2, absl::CancelledError("midway"));
    }
    box.pump();
    for (int i = 0; i < 4; ++i) {
      const Recorder& r = *all[static_cast<size_t>(i)];
      ASSERT_TRUE(r.ok() || (i == 1 && seed % 5 == 0)) << r.end.status;
      if (r.ok()) EXPECT_EQ(r.tokens, box.greedy({i, 2, 3, 4, 5, 6, 7, 8}, 8));
    }
    box.expect_idle();
    // What ended leaves its values until the next batch of each device, and not longer.
    SequenceSpec flush = box.spec({1}, 1);
    box.submit(std::move(flush));
    SequenceSpec flush_small = box.spec({1}, 1);
    flush_small.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
    box.submit(std::move(flush_small));
    box.pump();
    EXPECT_EQ(box.values.size(), 0U) << "seed " << seed;
  }
}

Task<void> names_a_private_pass(Gen g) {
  const Stage L = g.stage(Role::kLarge);
  co_await g.round({{L, g.missing(L) + 1}});
  Pass p = g.catch_up(L);
  p.reading(g.draw(last_rows(1, p.add.size())));
  Ticket t = g.submit(std::move(p));  // not shared
  Pass q;
  q.stage = L;
  q.add.chain(t.chosen(0));
  Readout r = co_await g.submit(std::move(q));
}

TEST(ContractRoundsDeathTest, PicksOfAPassThatDoesNotShare) {
  const auto run = [] {
    Box box{BoxOptions()};
    SequenceSpec s = box.spec({1}, 1);
    s.method = names_a_private_pass;
    box.submit(std::move(s));
    box.pump();
  };
  EXPECT_DEATH(run(), "broken invariant");
}

}  // namespace
}  // namespace tandem::test
