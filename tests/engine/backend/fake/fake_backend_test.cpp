// The fake device answers in closed form, and detects invalid memory accesses.
#include "engine/backend/fake/fake_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>

#include "tests/engine/pass/page_table.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

constexpr int kLayers = 4;
constexpr int kPageRows = 4;

class FakeBackendTest : public testing::Test {
 protected:
  FakeBackendTest() {
    config_.vocab_size = 30;
    config_.layers = kLayers;
    config_.pass_seconds = 0.5;
    config_.row_seconds = 0.25;
    backend_.add_model(ModelId(0), "fake", config_, {kPageRows, 8, 8, 4});
  }

  static Pass pass(const std::vector<Token>& tokens, int to = kLayers) {
    Pass p;
    p.stage = {CacheId(0), to};
    for (const Token t : tokens) p.add.chain(token_in(t));
    if (!tokens.empty()) p.reading({.rows = {static_cast<Row>(tokens.size()) - 1}, .draw = true});
    return p;
  }
  // All of `p` after `past` rows, in pages 0, 1, ...
  static Work work(const Pass& p, int past, std::vector<int> frontier = {}) {
    Work w;
    w.pass = &p;
    w.ticket = 1;
    w.model = ModelId(0);
    w.cache = CacheId(0);
    w.to = p.stage.to;
    w.count = static_cast<int>(p.add.size());
    w.past = past;
    w.frontier = std::move(frontier);
    const int pages = (past + w.run_rows() + kPageRows - 1) / kPageRows;
    w.pages = test::page_table(0, pages);
    w.frontier_pages.assign(w.pages.begin(), w.pages.end());
    w.save_frontier = w.to < kLayers;
    for (size_t i = 0; i < p.read.size(); ++i) {
      w.outputs.push_back({static_cast<int>(i), 0, w.frontier_rows() + p.read[i].rows[0],
                           static_cast<int>(i), p.read[i].hidden ? PageId(2) : PageId()});
    }
    return w;
  }
  BatchResult run(Work w, std::vector<Move> moves = {}) {
    Batch b;
    b.works.push_back(std::move(w));
    b.moves = std::move(moves);
    BatchResult result;
    backend_.launch(b, [&](BatchResult r) { result = std::move(r); });
    timer_.fire_next();
    return result;
  }
  // The row of the second of three tokens goes to value 2, under the name (1, 0).
  static Pass leaving() {
    Pass p = pass({1, 2, 3});
    p.read[0] = {.rows = {1}, .hidden = true};
    return p;
  }
  // A row after them whose input is output `out` of pass `ticket`, at place `value`.
  Work fed(PageId value, TicketId ticket = 1, int out = 0) {
    Pass& p = fed_.emplace_back();
    p.stage.to = kLayers;
    In in;
    in.kind = In::kEmbed;
    in.ref = {ticket, out, true};
    p.add.chain(in);
    p.reading({.rows = {0}, .draw = true});
    Work w = work(p, 3);
    w.ticket = 2;
    if (value.valid()) w.embeds = {{0, ModelId(0), value}};
    return w;
  }
  Token expected(const std::vector<Token>& tokens, int layers = kLayers) const {
    const auto l = fake::logits_after(config_, tokens, layers);
    return static_cast<Token>(std::max_element(l.begin(), l.end()) - l.begin());
  }
  static Token token(const BatchResult& r) { return r.works.at(0).readout.row.at(0).token; }
  static Move freed(Store store, int page) {
    Move m;
    m.kind = Move::kFree;
    m.store = store;
    m.from = {ModelId(0), PageId(page), 0};
    return m;
  }

  FakeModelConfig config_;
  VirtualClock clock_;
  VirtualTimer timer_{&clock_};
  ValueStore values_;
  FakeMemory memory_;
  const Pass leaving_ = leaving();
  std::deque<Pass> fed_;
  FakeBackend backend_{&memory_, &values_, &clock_, &timer_};
};

TEST_F(FakeBackendTest, AnswersInClosedForm) {
  const Pass a = pass({1, 2, 3, 4, 5}), b = pass({6});
  EXPECT_EQ(token(run(work(a, 0))), expected({1, 2, 3, 4, 5}));
  EXPECT_EQ(token(run(work(b, 5))), expected({1, 2, 3, 4, 5, 6}));
}

TEST_F(FakeBackendTest, AdaptersChangeTheAnswerAndTheirRowsAreTheirs) {
  backend_.add_model(ModelId(1), "tuned", config_, {kPageRows, 8, 8, 4}, 0, {{"a", ""}, {"b", ""}});
  ASSERT_EQ(backend_.shape(ModelId(1)).loras.size(), 2U);
  EXPECT_EQ(backend_.shape(ModelId(1)).loras[1].name, "b");
  const Pass a = pass({1, 2, 3, 4, 5}), b = pass({6});
  const auto with = [](Work w, LoraId lora) {
    w.model = ModelId(1);
    w.lora = lora;
    return w;
  };
  for (const LoraId lora : {LoraId(), LoraId(0), LoraId(1)}) {
    const FakeModelConfig adapted = fake::with_lora(config_, lora);
    const auto logits = fake::logits_after(adapted, std::vector<Token>{1, 2, 3, 4, 5, 6}, kLayers);
    run(with(work(a, 0), lora));
    EXPECT_EQ(token(run(with(work(b, 5), lora))),
              std::ranges::max_element(logits) - logits.begin());
  }
  EXPECT_DEATH(run(with(work(b, 5), LoraId(0))), "a past row has another LoRA adapter");
  EXPECT_DEATH(run(with(work(b, 5), LoraId())), "a past row has another LoRA adapter");
}

TEST_F(FakeBackendTest, APageGoesToTheHostAndBack) {
  const Pass a = pass({1, 2, 3, 4, 5}), b = pass({5, 6}), none = pass({});
  run(work(a, 0));
  std::vector<std::byte> host(static_cast<size_t>(backend_.shape(ModelId(0)).page_bytes));
  Move save;
  save.kind = Move::kSave;
  save.from = {ModelId(0), PageId(0), 0};
  save.host = host.data();
  Move load;
  load.kind = Move::kLoad;
  load.to = {ModelId(0), PageId(5), 0};
  load.host = host.data();
  run(work(none, 0), {save, freed(Store::kKv, 0), load});
  Work w = work(b, 4);
  w.pages = test::page_table(5, 2);
  EXPECT_EQ(token(run(std::move(w))), expected({1, 2, 3, 4, 5, 6}));
}

TEST_F(FakeBackendTest, TakesItsTime) {
  const Pass a = pass({1, 2, 3});
  const BatchResult r = run(work(a, 0));
  EXPECT_DOUBLE_EQ(seconds(r.busy), 0.5 + 3 * 0.25);
  EXPECT_EQ(clock_.now(), TimePoint(r.busy));
}

// Latency measurements rely on this: answers name their batch, and the file has its end time.
TEST_F(FakeBackendTest, TracedAnswersAreTheNumbersOfBatches) {
  const test::TempDir folder;
  const std::string path = folder.path() + "/trace";
  FakeModelConfig config = config_;
  config.vocab_size = 257;
  config.row_seconds = 0;
  const std::vector<Token> tokens = {1, 2};
  const Pass a = pass(tokens), b = pass({3});
  {
    FakeMemory memory;
    FakeBackend backend(&memory, &values_, &clock_, &timer_);
    backend.add_model(ModelId(0), "fake", config, {kPageRows, 8, 8});
    auto trace = BatchTrace::open(path);
    ASSERT_TRUE(trace.ok()) << trace.status();
    backend.set_trace(ModelId(0), *std::move(trace));
    for (int i = 0; i < 100; ++i) {
      Batch batch;
      batch.works.push_back(i == 0 ? work(a, 0) : work(b, 2));
      BatchResult result;
      backend.launch(batch, [&](BatchResult r) { result = std::move(r); });
      timer_.fire_next();
      EXPECT_EQ(token(result), 32 + i % 95);
    }
  }
  std::ifstream in(path);
  for (int64_t i = 0, batch = -1, time = -1; i < 100; ++i) {
    ASSERT_TRUE(in >> batch >> time);
    EXPECT_EQ(batch, i);
    EXPECT_EQ(time, (i + 1) * 500'000'000);
  }
  EXPECT_FALSE(BatchTrace::open(folder.path() + "/none/trace").ok());
}

// Benchmarks disable the checks; answers then do not depend on memory.
TEST_F(FakeBackendTest, ChecksMemoryUnlessSwitchedOff) {
  const test::TempDir folder;
  FakeModelConfig config = config_;
  config.vocab_size = 257;
  const Pass a = pass({1, 2});
  const auto answer = [&](bool check_memory) {
    config.check_memory = check_memory;
    FakeMemory memory;
    FakeBackend backend(&memory, &values_, &clock_, &timer_);
    backend.add_model(ModelId(0), "fake", config, {kPageRows, 8, 8});
    auto trace = BatchTrace::open(folder.path() + "/trace");
    EXPECT_TRUE(trace.ok()) << trace.status();
    backend.set_trace(ModelId(0), *std::move(trace));
    Batch batch;
    batch.works.push_back(work(a, 5));  // behind rows that were never written
    BatchResult result;
    backend.launch(batch, [&](BatchResult r) { result = std::move(r); });
    timer_.fire_next();
    return token(result);
  };
  EXPECT_EQ(answer(false), 32);
  EXPECT_DEATH(answer(true), "never written");
}

TEST_F(FakeBackendTest, EarlierLayersAnswerDifferently) {
  const Pass low = pass({1, 2, 3}, 2);
  EXPECT_EQ(token(run(work(low, 0))), expected({1, 2, 3}, 2));
  Pass up = pass({});
  up.reading({.rows = {-1}, .draw = true});
  EXPECT_EQ(token(run(work(up, 0, {2, 2, 2}))), expected({1, 2, 3}));
  Pass early = pass({4});
  early.reading({.rows = {0}, .at = 1, .draw = true});
  const BatchResult r = run(work(early, 3));
  EXPECT_EQ(r.works[0].readout.row[1].token, expected({1, 2, 3, 4}, 1));
}

TEST_F(FakeBackendTest, CopiesCarryRows) {
  const Pass a = pass({1, 2, 3, 4}), b = pass({5});
  run(work(a, 0));
  Move m;
  m.from = {ModelId(0), PageId(0), 0};
  m.to = {ModelId(0), PageId(6), 0};
  m.rows = 4;
  m.layers = kLayers;
  Work w = work(b, 4);
  w.pages = test::page_table(6, 2);
  EXPECT_EQ(token(run(std::move(w), {m})), expected({1, 2, 3, 4, 5}));
}

TEST_F(FakeBackendTest, NothingIsWrittenWhereABatchFails) {
  const Pass a = pass({1, 2});
  backend_.set_faults([](const Batch&) { return Fault{absl::InternalError("no"), {}, {}}; });
  EXPECT_FALSE(run(work(a, 0)).status.ok());
  EXPECT_EQ(memory_.model(ModelId(0)).kv[0].input, 0U);
}

TEST_F(FakeBackendTest, ABatchStaysAsItIs) {
  const Pass a = pass({1, 2});
  std::vector<PageId> pages = {PageId(0)};
  Batch batch;
  batch.works = {work(a, 0)};
  batch.works[0].pages = pages;
  backend_.launch(batch, [](BatchResult) {});
  pages[0] = PageId(1);
  EXPECT_DEATH(timer_.fire_next(), "broken invariant");
  pages[0] = PageId(0);
  timer_.fire_next();
}

TEST_F(FakeBackendTest, NanWorksFailAlone) {
  const Pass a = pass({1, 2}), b = pass({3});
  Batch batch;
  batch.works = {work(a, 0), work(b, 0)};
  batch.works[1].cache = CacheId(1);
  batch.works[1].pages = test::page_table(5, 1);
  backend_.set_faults([](const Batch&) { return Fault{{}, {0}, {}}; });
  BatchResult result;
  backend_.launch(batch, [&](BatchResult r) { result = std::move(r); });
  EXPECT_TRUE(result.works.empty()) << "not before its time";
  timer_.fire_next();
  EXPECT_FALSE(result.works[0].status.ok());
  EXPECT_TRUE(result.works[1].status.ok());
}

TEST_F(FakeBackendTest, PassesReadUnreadPicks) {
  Pass a = pass({1, 2});
  a.share = true;
  a.read[0].top = 3;
  const Readout r = std::move(run(work(a, 0)).works[0].readout);
  Pass b;
  b.stage = {CacheId(0), kLayers};
  In in;
  in.kind = In::kChosen;
  in.id = 2;
  in.ref.ticket = 1;
  b.add.chain(in);
  b.reading({.rows = {0}, .draw = true});
  EXPECT_EQ(token(run(work(b, 2))), expected({1, 2, r.row[0].top[2].token}));
  in.ref.ticket = 9;
  b.add.in[0] = in;
  EXPECT_FALSE(run(work(b, 2)).works[0].status.ok());
}

TEST_F(FakeBackendTest, RowsTakeHiddenRowsAsInputs) {
  run(work(leaving_, 0));
  const std::vector<uint64_t> seen = {fake::token_input(1), fake::token_input(2)};
  const uint64_t row = fake::embed_input(AdapterId(), fake::chain(seen), kLayers, -1);
  std::vector<uint64_t> inputs = {seen[0], seen[1], fake::token_input(3), row};
  const auto l = fake::logits_after_inputs(config_, inputs, kLayers);
  EXPECT_EQ(token(run(fed(PageId(2)))), std::ranges::max_element(l) - l.begin());
}

// --- Broken memory

class FakeBackendDeathTest : public FakeBackendTest {
 protected:
  FakeBackendDeathTest() {
    run(work(five_, 0));
    run(work(low_, 0, {}), {freed(Store::kKv, 0), freed(Store::kKv, 1)});
    run(work(five_, 0));  // pages 0, 1: five rows; frontier page 0: of other rows
  }
  const Pass five_ = pass({1, 2, 3, 4, 5});
  const Pass low_ = pass({9, 8}, 2);
  const Pass next_ = pass({6});
  const Pass pass_nothing_ = pass({});
};

TEST_F(FakeBackendDeathTest, FindsWhatTheBooksGetWrong) {
  EXPECT_EQ(token(run(work(next_, 5))), expected({1, 2, 3, 4, 5, 6})) << "all is well";
  EXPECT_DEATH(run(work(next_, 7)), "never written");
  EXPECT_DEATH(run(work(next_, 5), {freed(Store::kKv, 0)}), "never written, or is freed");
  EXPECT_DEATH(run(work(pass_nothing_, 0, std::vector<int>(5, 2))), "has done other layers");
  {
    Work w = work(next_, 5);
    w.pages = test::page_table({PageId(1), PageId(0)});
    EXPECT_DEATH(run(w), "another position");
  }
  {
    const Pass other = pass({7, 7, 7, 7});
    Work foreign = work(other, 0);
    foreign.pages = test::page_table(3, 1);
    run(foreign);
    Work w = work(next_, 5);
    w.pages = test::page_table({PageId(3), PageId(1)});
    EXPECT_DEATH(run(w), "belongs to another sequence");
  }
  {
    const Pass low = pass({1, 2}, 2);
    Work w = work(low, 0);
    w.pages = test::page_table(4, 1);
    w.frontier_pages = {PageId(4)};
    run(w);
    Work up = work(next_, 2);
    up.pages = test::page_table(4, 1);
    EXPECT_DEATH(run(up), "not done all layers");
    Work stale = work(pass_nothing_, 0, {2, 2});
    stale.pages = test::page_table(4, 1);
    stale.frontier_pages = {PageId(0)};
    EXPECT_DEATH(run(stale), "stale frontier row");
    stale.frontier_pages = {PageId()};
    EXPECT_DEATH(run(stale), "no frontier page");
    stale.frontier_pages = {PageId(4)};
    stale.frontier = {3, 3};
    EXPECT_DEATH(run(stale), "done other layers");
  }
  Pass outside = pass({30});
  EXPECT_DEATH(run(work(outside, 5)), "outside the vocabulary");
  Pass above = pass({6}, 2);
  above.read[0].at = 3;
  EXPECT_DEATH(run(work(above, 0)), "above the pass");
  Move m;
  m.from = {ModelId(0), PageId(6), 0};
  m.to = {ModelId(0), PageId(7), 0};
  EXPECT_DEATH(run(work(next_, 5), {m}), "broken invariant") << "a move of what is not there";
}

TEST_F(FakeBackendDeathTest, FindsRowsOfAnotherMemory) {
  const Pass prefix = pass({1, 2, 3}), next = pass({4});
  const Pass sources[] = {pass({5, 6}), pass({6, 5})};
  for (const int i : {0, 1}) {
    Work source = work(sources[i], 0);
    source.pages = test::page_table(5 + i, 1);
    run(source);
  }
  const auto reading = [&](const Pass& p, int past, int source) {
    Work w = work(p, past);
    w.memory_model = w.model;
    w.memory_pages = {PageId(5 + source)};
    w.memory_rows = 2;
    return w;
  };
  run(reading(prefix, 0, 0));
  run(reading(next, 3, 0));
  EXPECT_DEATH(run(reading(next, 3, 1)), "has read another memory");
  run(reading(prefix, 0, 1));  // written anew
  run(reading(next, 3, 1));
}

TEST_F(FakeBackendDeathTest, FindsHiddenRowsThatAreNotWhatTheyAreNamed) {
  run(work(leaving_, 0));
  EXPECT_DEATH(run(fed(PageId(1))), "never left, or is forgotten");
  EXPECT_DEATH(run(fed(PageId(2), 1, 1)), "of another pass or output");
  EXPECT_DEATH(run(fed(PageId(2), 9)), "of another pass or output");
  EXPECT_DEATH(run(fed(PageId())), "without a place");
  EXPECT_DEATH(run(fed(PageId(2)), {freed(Store::kValue, 2)}), "never left, or is forgotten");
}

}  // namespace
}  // namespace tandem
