// The arrays of a plan: visibility, segments, reads.
#include "engine/backend/torch/plan.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/backend/torch/step_graphs.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/pass/page_table.h"

namespace tandem {
namespace {

using testing::Test;

class PlanTest : public Test {
 protected:
  PlanTest() {
    shape.vocab_size = 100;
    shape.layers = 8;
    shape.max_positions = 64;
    pool = {.page_rows = 4, .pages = 50, .frontier_pages = 20};
  }

  // A work whose pages are 10, 11, ... and frontier pages 5, 6, ...
  Work work(const Pass& pass, int past, std::vector<int> frontier = {}) const {
    Work w;
    w.pass = &pass;
    w.to = pass.stage.to;
    w.count = static_cast<int>(pass.add.size());
    w.past = past;
    w.frontier = std::move(frontier);
    w.save_frontier = w.to < shape.layers;
    const int pages = (w.rows_before() + w.count + 3) / 4;
    w.pages = test::page_table(10, pages);
    for (int i = 0; i < pages; ++i) w.frontier_pages.push_back(PageId(5 + i));
    return w;
  }

  const Plan& build(std::vector<Work> works) {
    batch.works = std::move(works);
    plan.build(batch, shape, pool, store, width_of, memory_of, {},
               [this](LoraId lora) { return loras.contains(lora); });
    return plan;
  }

  std::vector<int32_t> visible(int row) const {
    const auto r = static_cast<size_t>(row);
    std::vector<int32_t> keys;
    for (int k = plan.columns.first_key[r]; k < plan.columns.dense_end[r]; ++k) keys.push_back(k);
    for (int e = plan.columns.extra_begin[r]; e < plan.columns.extra_end[r]; ++e) {
      keys.push_back(plan.extra[static_cast<size_t>(e)]);
    }
    return keys;
  }

  ModelShape shape;
  std::set<LoraId> loras;  // loaded
  PoolSize pool;
  ValueStore store;
  Plan::WidthOf width_of;
  PoolSize encoder_pool{.page_rows = 2, .pages = 9};
  Plan::MemoryOf memory_of = [this](ModelId encoder) {
    return encoder == ModelId(4) ? &encoder_pool : nullptr;
  };
  Batch batch;
  Plan plan;
};

using Ints = std::vector<int32_t>;

TEST_F(PlanTest, TreeRowsSeePastAncestorsAndThemselves) {
  Pass pass;
  pass.stage.to = 8;
  //      0 - 1 - 2
  //        \ 3 - 4      5 has no parent among the added
  for (const Row parent : {-1, 0, 1, 0, 3, -1}) pass.add.add(token_in(7), parent);
  build({work(pass, 3)});
  ASSERT_TRUE(plan.items[0].status.ok()) << plan.items[0].status;
  EXPECT_EQ(plan.columns.position, (Ints{3, 4, 5, 4, 5, 3}));
  EXPECT_EQ(visible(0), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(visible(1), (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(visible(2), (Ints{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(visible(3), (Ints{0, 1, 2, 3, 6}));
  EXPECT_EQ(visible(4), (Ints{0, 1, 2, 3, 6, 7}));
  EXPECT_EQ(visible(5), (Ints{0, 1, 2, 8}));
  EXPECT_EQ(plan.columns.slot[0], 10 * 4 + 3);
  EXPECT_EQ(plan.columns.slot[1], 11 * 4 + 0);
  EXPECT_EQ(plan.columns.slot[5], 12 * 4 + 0);
}

TEST_F(PlanTest, WindowCountsPositionsNotRows) {
  shape.window = 3;
  Pass pass;
  pass.stage.to = 8;
  for (const Row parent : {-1, -1, 1, 2, 3}) pass.add.add(token_in(7), parent);
  build({work(pass, 5)});
  EXPECT_EQ(visible(0), (Ints{3, 4, 5}));
  EXPECT_EQ(visible(1), (Ints{3, 4, 6}));
  EXPECT_EQ(visible(2), (Ints{4, 6, 7}));
  EXPECT_EQ(visible(3), (Ints{6, 7, 8}));
  EXPECT_EQ(visible(4), (Ints{7, 8, 9}));
}

TEST_F(PlanTest, WindowedPagesBeforeItMayBeGone) {
  shape.window = 4;
  const Pass pass = chain_pass(8, std::vector<Token>{1});
  Work w = work(pass, 12);
  std::vector<PageId> pages(w.pages.begin(), w.pages.end());
  pages[0] = pages[1] = PageId();
  w.pages = pages;
  build({w});
  EXPECT_TRUE(plan.items[0].status.ok()) << plan.items[0].status;
  pages[2] = PageId();
  build({w});
  EXPECT_EQ(plan.items[0].status.code(), absl::StatusCode::kInternal);
}

TEST_F(PlanTest, OneSegmentWhenAllRunAllLayers) {
  Pass a = chain_pass(8, std::vector<Token>{1, 2});
  a.reading({.rows = {1}});
  const Pass b = chain_pass(8, std::vector<Token>{3});
  Work wa = work(a, 0);
  wa.outputs = {{0, 0, 1, 0}};
  build({wa, work(b, 6)});
  ASSERT_EQ(plan.segments.size(), 1U);
  EXPECT_TRUE(plan.segments[0].all);
  EXPECT_EQ(plan.segments[0].from, 0);
  EXPECT_EQ(plan.segments[0].to, 8);
  EXPECT_EQ(plan.token, (std::vector<Token>{1, 2, 3}));
  ASSERT_EQ(plan.captures.size(), 1U);
  EXPECT_EQ(plan.captures[0].at, 8);
  EXPECT_EQ(plan.captures[0].copies.from, (std::vector<int64_t>{1}));
  EXPECT_EQ(plan.save.size(), 0);
}

TEST_F(PlanTest, RowsThatAreNotReadNeedOnlyKeysAndValuesOfTheLastLayer) {
  const std::vector<Token> tokens(10, 1);
  struct Case {
    std::vector<int> read;  // rows of the first pass
    int other = 0;          // rows of a pass to layer 3
    bool cut = true;
  };
  for (const Case& c :
       {Case{{9}}, Case{{}}, Case{{2, 9}, 3}, Case{{0, 2, 3, 4, 5, 7, 9}, 0, false}}) {
    Pass a = chain_pass(8, tokens);
    a.reading({.rows = RowList(c.read.begin(), c.read.end())});
    Work wa = work(a, 0);
    const std::vector<int64_t> read(c.read.begin(), c.read.end());
    for (int i = 0; i < static_cast<int>(read.size()); ++i) {
      wa.outputs.push_back({0, i, c.read[static_cast<size_t>(i)], i});
    }
    const Pass b = chain_pass(3, std::span(tokens).first(static_cast<size_t>(c.other)));
    std::vector<Work> works{wa};
    if (c.other > 0) works.push_back(work(b, 0));
    build(works);
    ASSERT_TRUE(plan.items[0].status.ok()) << plan.items[0].status;
    const size_t before = plan.segments.size();
    plan.cut_last_layer(shape);
    if (!c.cut) {
      EXPECT_EQ(plan.segments.size(), before);
      EXPECT_EQ(plan.segments.back().to, 8);
      continue;
    }
    ASSERT_EQ(plan.segments.size(), before + 1 + (read.empty() ? 0 : 1));
    EXPECT_EQ(plan.segments[before - 1].to, 7);
    const Segment& stored = plan.segments[before];
    EXPECT_TRUE(stored.kv_only);
    EXPECT_EQ(stored.from, 7);
    EXPECT_EQ(stored.to, 8);
    EXPECT_EQ(stored.all, c.other == 0);
    EXPECT_EQ(stored.index.size(), c.other == 0 ? 0U : 10U);
    if (read.empty()) continue;
    const Segment& rest = plan.segments[before + 1];
    EXPECT_FALSE(rest.kv_only || rest.all);
    EXPECT_EQ(rest.from, 7);
    EXPECT_EQ(rest.index, read);
    EXPECT_EQ(rest.columns.position, Ints(c.read.begin(), c.read.end()));
  }
}

TEST_F(PlanTest, RowsThatAreSavedNeedTheWholeLastLayer) {
  Pass a = chain_pass(8, std::vector<Token>(6, 1));
  Work wa = work(a, 0);
  wa.save_frontier = true;
  build({wa});
  ASSERT_TRUE(plan.items[0].status.ok()) << plan.items[0].status;
  plan.cut_last_layer(shape);
  ASSERT_EQ(plan.segments.size(), 1U);
  EXPECT_FALSE(plan.segments[0].kv_only);
}

TEST_F(PlanTest, TheLastLayerAloneIsCutToo) {
  Pass a = chain_pass(8, std::vector<Token>{});
  a.reading({.rows = {-1}});
  Work wa = work(a, 0, Ints(6, 7));  // rows that have done 7 layers
  wa.outputs = {{0, 0, 5, 0}};
  build({wa});
  ASSERT_EQ(plan.segments.size(), 1U);
  plan.cut_last_layer(shape);
  ASSERT_EQ(plan.segments.size(), 2U);
  EXPECT_TRUE(plan.segments[0].kv_only);
  EXPECT_EQ(plan.segments[1].index, (std::vector<int64_t>{5}));
  for (const Segment& s : plan.segments) EXPECT_EQ(s.from, 7);
}

TEST_F(PlanTest, SegmentsFollowFrontiersAndReads) {
  // Rows: two of the frontier (5 and 2 layers done) and one new, to layer 8, read at 6 as well.
  Pass a = chain_pass(8, std::vector<Token>{9});
  a.reading({.rows = {0}, .at = 6}).reading({.rows = {0}});
  Work wa = work(a, 1, {5, 2});
  wa.outputs = {{0, 0, 2, 0}, {1, 0, 2, 1}};
  // One row to layer 3, which stays on the frontier.
  const Pass b = chain_pass(3, std::vector<Token>{4});
  build({wa, work(b, 0)});
  struct Want {
    int from, to;
    std::vector<int64_t> rows;
  };
  const Want want[] = {
      {0, 2, {2, 3}}, {2, 3, {1, 2, 3}}, {3, 5, {1, 2}}, {5, 6, {0, 1, 2}}, {6, 8, {0, 1, 2}}};
  ASSERT_EQ(plan.segments.size(), std::size(want));
  for (size_t i = 0; i < std::size(want); ++i) {
    EXPECT_EQ(plan.segments[i].from, want[i].from);
    EXPECT_EQ(plan.segments[i].to, want[i].to);
    EXPECT_EQ(plan.segments[i].index, want[i].rows) << i;
    EXPECT_EQ(plan.segments[i].columns.rows(), static_cast<int>(want[i].rows.size()));
  }
  EXPECT_EQ(plan.load.from, (std::vector<int64_t>{5 * 4 + 1, 5 * 4 + 2}));
  EXPECT_EQ(plan.load.to, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(plan.save.from, (std::vector<int64_t>{3}));
  EXPECT_EQ(plan.save.to, (std::vector<int64_t>{5 * 4}));
  ASSERT_EQ(plan.captures.size(), 2U);
  EXPECT_EQ(plan.captures[0].at, 6);
  EXPECT_EQ(plan.captures[1].at, 8);
  EXPECT_EQ(plan.reads, 2);
}

// Numbers of rows are the segment's.
TEST_F(PlanTest, RowsOfAnAdapterAreGroupedBySegment) {
  loras = {LoraId(0), LoraId(1)};
  const Pass pass = chain_pass(8, std::vector<Token>{1, 2});
  const Pass lower = chain_pass(4, std::vector<Token>{3});
  std::vector<Work> works{work(pass, 0), work(lower, 0), work(pass, 0), work(pass, 0),
                          work(pass, 0)};
  works[0].lora = LoraId(1);
  works[1].lora = LoraId(0);
  works[3].lora = LoraId(1);
  works[4].lora = LoraId(2);
  build(works);
  EXPECT_EQ(plan.items[4].status.message(),
            "lora: 2; allowed: LoRA adapters of the model that are loaded");
  EXPECT_EQ(plan.adapted_rows, 5);
  using Numbers = std::vector<int64_t>;
  ASSERT_EQ(plan.segments.size(), 2u);
  const std::vector<LoraRows>& first = plan.segments[0].loras;
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].additions.lora, LoraId(1));
  EXPECT_EQ(first[0].rows, (Numbers{0, 1, 5, 6}));
  EXPECT_EQ(first[1].additions.lora, LoraId(0));
  EXPECT_EQ(first[1].rows, (Numbers{2}));
  const std::vector<LoraRows>& second = plan.segments[1].loras;
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].rows, (Numbers{0, 1, 4, 5}));
}

TEST_F(PlanTest, MaskRowsHaveTheAdditionsOfTheirMasks) {
  loras = {LoraId(0)};
  shape.adapters.resize(2);
  for (AdapterShape& adapter : shape.adapters) adapter.masks = 1;
  Pass pass = chain_pass(8, std::vector<Token>{1, 2});
  In mask;
  mask.kind = In::kMask;
  pass.add.add(mask, 1);
  pass.adapter = AdapterId(1);
  std::vector<Work> works{work(pass, 0), work(pass, 0)};
  works[1].lora = LoraId(0);
  build(works);
  EXPECT_EQ(plan.adapted_rows, 3) << "masks without additions have those of the request";
  shape.adapters[1].additions = true;
  build(works);
  EXPECT_EQ(plan.adapted_rows, 4);
  const std::vector<LoraRows>& all = plan.segments[0].loras;
  ASSERT_EQ(all.size(), 2u);
  using Numbers = std::vector<int64_t>;
  EXPECT_EQ(all[0].additions.masks, AdapterId(1));
  EXPECT_EQ(all[0].rows, (Numbers{2, 5}));
  EXPECT_EQ(all[1].additions.lora, LoraId(0));
  EXPECT_EQ(all[1].rows, (Numbers{3, 4}));
}

TEST_F(PlanTest, StepsWithAdaptersAreReplayedIfKernelsAddThem) {
  loras = {LoraId(0)};
  Pass pass = chain_pass(8, std::vector<Token>{1, 2});
  pass.reading({.rows = {1}, .draw = true});
  Work w = work(pass, 0);
  w.outputs.push_back({0, 0, 1, 0, PageId()});
  build({w});
  EXPECT_EQ(plan.adapted_rows, 0);
  EXPECT_TRUE(plan.segments[0].loras.empty());
  EXPECT_TRUE(StepGraphs::can_run(plan));
  w.lora = LoraId(0);
  build({w});
  EXPECT_FALSE(StepGraphs::can_run(plan));
  EXPECT_TRUE(StepGraphs::can_run(plan, /*loras=*/true));
}

TEST_F(PlanTest, InvalidPagesAreInternalAndFailAlone) {
  const Pass good = chain_pass(8, std::vector<Token>{1});
  std::vector<Work> works(6, work(good, 2));
  works[1].pages = test::page_table(50, 1);
  works[2].pages = {};
  works[3].to = 9;
  works[4].frontier = {8};
  works[5].past = 64;
  works[5].pages = test::page_table(std::vector<PageId>(20, PageId(1)));
  build(works);
  EXPECT_TRUE(plan.items[0].status.ok());
  for (size_t i = 1; i < works.size(); ++i) {
    EXPECT_EQ(plan.items[i].status.code(), absl::StatusCode::kInternal) << i;
  }
  EXPECT_EQ(plan.rows(), 1);
}

TEST_F(PlanTest, ReadsBelowTheRowsLayersAreRefused) {
  Pass pass = chain_pass(8, std::vector<Token>{});
  pass.reading({.rows = {-1}, .at = 3});
  Work w = work(pass, 1, {4});
  w.outputs = {{0, 0, 0, 0}};
  build({w});
  EXPECT_EQ(plan.items[0].status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PlanTest, ReadsAreTakenInBlocks) {
  const auto with_reads = [](int n) {
    Pass pass = chain_pass(8, std::vector<Token>(static_cast<size_t>(n), 1));
    Read left;
    left.rows = {0};
    left.hidden = true;
    pass.reading(left).reading({.rows = last_rows(static_cast<size_t>(n), pass.add.size())});
    return pass;
  };
  pool.values = 1;
  const Pass passes[] = {with_reads(2), with_reads(7), with_reads(3), with_reads(1), with_reads(0)};
  std::vector<Work> works;
  for (const Pass& pass : passes) {
    Work& w = works.emplace_back(work(pass, 0));
    if (w.count > 0) w.outputs.push_back({0, 0, 0, 0, PageId(0)});
    for (int i = 0; i < w.count; ++i) w.outputs.push_back({1, i, i, i + 1, PageId()});
  }
  build(works);
  EXPECT_EQ(plan.reads, 13);
  const auto blocks = plan.read_blocks(batch, 3);
  struct Want {
    size_t begin, end, from, to;
    int first, count;
  };
  const Want want[] = {{0, 1, 0, kAllOutputs, 0, 2}, {1, 2, 0, 4, 2, 3},
                       {1, 2, 4, 7, 5, 3},           {1, 2, 7, 8, 8, 1},
                       {2, 3, 0, kAllOutputs, 9, 3}, {3, 5, 0, kAllOutputs, 12, 1}};
  ASSERT_EQ(blocks.size(), std::size(want));
  for (size_t i = 0; i < std::size(want); ++i) {
    EXPECT_EQ(blocks[i].begin, want[i].begin) << i;
    EXPECT_EQ(blocks[i].end, want[i].end) << i;
    EXPECT_EQ(blocks[i].from, want[i].from) << i;
    EXPECT_EQ(blocks[i].to, want[i].to) << i;
    EXPECT_EQ(blocks[i].first, want[i].first) << i;
    EXPECT_EQ(blocks[i].count, want[i].count) << i;
  }
}

}  // namespace
}  // namespace tandem
