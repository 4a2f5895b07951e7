// A row's results do not depend on scheduling: a single request or a ragged batch, one pass or
// chunks, all layers at once or in stages. On the CPU they are bit-identical, in every type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/driver.h"

namespace tandem {
namespace {

using Rows = std::vector<std::vector<float>>;

void expect_close(const Rows& got, const Rows& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t r = 0; r < want.size(); ++r) {
    ASSERT_EQ(got[r].size(), want[r].size());
    for (size_t t = 0; t < want[r].size(); ++t) {
      ASSERT_NEAR(got[r][t], want[r][t], tolerance) << "row " << r << ", token " << t;
    }
  }
}

RowList counting(int n) {
  RowList rows;
  for (int i = 0; i < n; ++i) rows.push_back(i);
  return rows;
}

// Log-probabilities at every row of a fresh prefill, at layer `at` of a pass to `to`.
Rows prefill(Driver& d, const std::vector<Token>& tokens, int to, int at = kTop, int chunk = 0) {
  Sequence s = d.sequence();
  Pass pass = chain_pass(to, tokens);
  Read read = all_logprobs(counting(static_cast<int>(tokens.size())), d.shape().vocab_size);
  read.at = at;
  pass.reading(read);
  Rows rows = logprobs(d.run(s, pass, chunk));
  d.release(s);
  return rows;
}

constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                            DType::kInt8};
std::string name_of(const testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

class Forward : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!test_device_holds(GetParam())) GTEST_SKIP() << "not on " << test_device().name();
  }
  static void expect_rows(const Rows& got, const Rows& want) {
    tandem::expect_rows(got, want, rounding_of(GetParam()));
  }
  TinyModel tiny(const DecoderConfig& config = tiny_config(), uint64_t seed = 1,
                 bool tied = false) {
    TinyModel m = tiny_model(config, seed, tied);
    m.dtype = GetParam();
    return m;
  }
};
class LayerRanges : public Forward {};

INSTANTIATE_TEST_SUITE_P(Types, Forward, testing::ValuesIn(kTypes), name_of);
INSTANTIATE_TEST_SUITE_P(Types, LayerRanges, testing::ValuesIn(kTypes), name_of);

TEST_P(Forward, ChunksAreOnePrefill) {
  Driver d(tiny());
  const auto tokens = random_tokens(37, 64, 3);
  const Rows whole = prefill(d, tokens, d.layers());
  for (const int chunk : {1, 2, 5, 16, 36}) {
    expect_rows(prefill(d, tokens, d.layers(), kTop, chunk), whole);
  }
}

// Attention to several splits of the context, by one thread or shared out.
TEST_P(Forward, LongContextsToo) {
  DecoderConfig c = tiny_config();
  c.layers = 2;
  c.max_positions = 1024;
  Driver one(tiny(c));
  Driver three(tiny(c), test_shared(), 0, {.page_rows = 16, .pages = 100, .frontier_pages = 1},
               /*threads=*/3);
  const auto tokens = random_tokens(600, 64, 3);
  const Rows whole = prefill(one, tokens, 2);
  expect_rows(prefill(three, tokens, 2), whole);
  for (const int chunk : {37, 256}) expect_rows(prefill(three, tokens, 2, kTop, chunk), whole);
  // Row by row across the end of a split.
  Sequence s = three.sequence();
  const Pass past = chain_pass(2, std::span(tokens).first(505));
  three.run(s, past);
  for (size_t i = 505; i < 520; ++i) {
    Pass next = chain_pass(2, std::span(tokens).subspan(i, 1));
    next.reading(all_logprobs({0}, 64));
    expect_rows(logprobs(three.run(s, next)), {whole[i]});
  }
}

// LibTorch's activations are fp32 for all weights.
TEST_P(Forward, OwnKernelsAreCloseToLibTorchs) {
  Driver reference(tiny(), test_shared(), 0, {.page_rows = 4, .pages = 60, .frontier_pages = 1}, 1,
                   CpuKernels::kAten);
  const auto tokens = random_tokens(40, 64, 4);
  const Rows want = prefill(reference, tokens, 6);
  // Its products of few rows read weights that are packed.
  const double rounding = test_device_keeps_bits() ? 1e-4 : rounding_of(GetParam());
  expect_close(prefill(reference, tokens, 6, kTop, 5), want, rounding);
  // With this processor's instructions, some of which take narrow activations.
  const cpu::RowType bf16 = cpu::row_type(cpu::WeightType::kBFloat16);
  const cpu::RowType int8 = cpu::row_type(cpu::WeightType::kInt8);
  const double best =
      GetParam() == DType::kBFloat16 && bf16 == cpu::RowType::kBFloat16 ? 0.15  // of 8 bits
      : GetParam() == DType::kInt8 && int8 == cpu::RowType::kInt8       ? 0.5   // of 7 and a sign
                                                                        : 0;
  const double plain = GetParam() == DType::kFloat64 ? 1e-5  // of fp32 readouts
                       : GetParam() == DType::kInt8  ? 0.01  // activations of 14 bits
                                                     : 1e-3;
  {
    Driver own(tiny());
    expect_close(prefill(own, tokens, 6), want, std::max(best, plain));
  }
  ASSERT_TRUE(cpu::force_target("EMU128").ok());
  {
    Driver own(tiny());
    expect_close(prefill(own, tokens, 6), want, plain);
  }
  ASSERT_TRUE(cpu::force_target("").ok());
}

TEST_P(Forward, RaggedBatchIsEachAlone) {
  Driver d(tiny());
  const int sizes[] = {1, 13, 4, 30, 2, 7, 1, 19};
  std::vector<Pass> passes;
  std::vector<Sequence> sequences;
  std::vector<Rows> alone;
  std::vector<std::vector<Token>> tokens;
  for (int i = 0; i < 8; ++i) {
    tokens.push_back(random_tokens(sizes[i] + 3, 64, 10 + static_cast<uint64_t>(i)));
    const Rows all = prefill(d, tokens.back(), d.layers());
    alone.emplace_back(all.begin() + 3, all.end());
  }
  for (int i = 0; i < 8; ++i) {
    const auto& t = tokens[static_cast<size_t>(i)];
    sequences.push_back(d.sequence());
    const Pass first = chain_pass(d.layers(), std::span(t).first(3));
    d.run(sequences.back(), first);
    Pass& p = passes.emplace_back(chain_pass(d.layers(), std::span(t).subspan(3)));
    p.reading(all_logprobs(counting(sizes[i]), 64));
  }
  std::vector<Driver::Item> items;
  for (size_t i = 0; i < 8; ++i) items.push_back({&sequences[i], &passes[i]});
  const auto results = d.run(items);
  for (size_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(results[i].status.ok()) << results[i].status;
    expect_rows(logprobs(results[i].readout), alone[i]);
  }
}

// The logits that a read has are those of a whole row, whatever other reads of the batch need.
TEST_P(Forward, SingleIdsAreThoseOfAWholeRow) {
  DecoderConfig c = tiny_config();
  c.vocab_size = 200;
  struct Ids {
    int first;
    std::vector<Token> more;
  };
  const std::vector<Ids> all = {
      {9, {40, 150, 199}}, {33, {61, 62, 200}}, {9, {}}, {70, {3, 150}}, {0, {}}};
  for (const bool tied : {false, true}) {
    Driver d(tiny(c, 1, tied), test_shared(), 0,
             {.page_rows = 4, .pages = 600, .frontier_pages = 200}, /*threads=*/tied ? 3 : 1);
    std::vector<Pass> passes;
    Rows wanted;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto tokens = random_tokens(3 + static_cast<int>(i), 200, 20 + i);
      passes.push_back(chain_pass(d.layers(), tokens));
      passes.back().reading(all_logprobs({static_cast<Row>(tokens.size()) - 1}, 200));
      wanted.push_back(prefill(d, tokens, d.layers()).back());
      Warp& warp = passes.back().read[0].warp;
      warp.vocab = all[i].first;
      if (all[i].more.empty()) continue;
      warp.more_ids = std::make_shared<const std::vector<Token>>(all[i].more);
    }
    // Without the read of a whole row, and with it; each alone.
    std::vector<std::vector<size_t>> batches = {{0, 1, 2, 3}, {3, 4, 0, 1}, {0, 4}, {2, 3}};
    for (size_t i = 0; i < all.size(); ++i) batches.push_back({i});
    std::vector<std::vector<Ranked>> first_answer(all.size());
    for (const std::vector<size_t>& batch : batches) {
      std::vector<Sequence> sequences(batch.size());
      std::vector<Driver::Item> items;
      for (size_t k = 0; k < batch.size(); ++k) {
        sequences[k] = d.sequence();
        items.push_back({.sequence = &sequences[k], .pass = &passes[batch[k]]});
      }
      const std::vector<WorkResult> results = d.run(items);
      for (size_t k = 0; k < batch.size(); ++k) {
        const size_t i = batch[k];
        ASSERT_TRUE(results[k].status.ok()) << results[k].status;
        const std::span<const Ranked> got = results[k].readout.row[0].top;
        double total = 0;
        size_t ids = 0;
        const auto may_draw = [&](Token t) {
          return all[i].first == 0 || t < all[i].first ||
                 std::ranges::find(all[i].more, t) != all[i].more.end();
        };
        for (Token t = 0; t < 200; ++t) {
          if (!may_draw(t)) continue;
          total += std::exp(double{wanted[i][static_cast<size_t>(t)]});
          ++ids;
        }
        ASSERT_EQ(got.size(), ids) << i;
        for (const Ranked& r : got) {
          ASSERT_TRUE(may_draw(r.token)) << r.token;
          const double want = double{wanted[i][static_cast<size_t>(r.token)]} - std::log(total);
          EXPECT_NEAR(r.logprob, want,
                      std::max(1e-5, test_device_keeps_bits() ? 0 : rounding_of(GetParam())));
        }
        std::vector<Ranked>& first = first_answer[i];
        for (size_t t = 0; t < first.size() && test_device_keeps_bits(); ++t) {
          ASSERT_EQ(got[t].token, first[t].token);
          ASSERT_EQ(got[t].logprob, first[t].logprob) << "its batch does not matter";
        }
        first.assign(got.begin(), got.end());
        d.release(sequences[k]);
      }
    }
    EXPECT_EQ(d.shape().reads_single_ids, test_device_keeps_bits());
  }
}

// An output matrix of 8 bits, large enough for a copy in 4 bits (cpu/argmax_screen.h).
TEST(ForwardTypes, GreedyReadsAreThoseOfAllLogits) {
  if (!test_device_holds(DType::kInt4)) GTEST_SKIP() << "a type of the CPU";
  DecoderConfig c = tiny_config();
  c.vocab_size = 131072;
  c.layers = 1;
  TinyModel tiny = tiny_model(c);
  tiny.dtype = DType::kInt4;
  Driver d(tiny);
  // shared: with a sampled read in the batch, which needs all logits
  const auto answer = [&](const std::vector<Token>& tokens, const Read& read, bool shared) {
    Sequence s = d.sequence(), other = d.sequence();
    Pass pass = chain_pass(1, tokens), sampled = pass;
    pass.reading(read);
    sampled.reading({.rows = {0}, .warp = {.temperature = 1}, .draw = true});
    std::vector<Driver::Item> items = {{&s, &pass}};
    if (shared) items.push_back({&other, &sampled});
    std::vector<WorkResult> results = d.run(items);
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    d.release(s);
    d.release(other);
    return std::move(results[0].readout);
  };
  // Only some products are screened at first.
  const auto expect_same = [&](const std::vector<Token>& tokens, const Read& read) {
    const Readout want = answer(tokens, read, true);
    for (int i = 0; i < 16; ++i) {
      const Readout got = answer(tokens, read, false);
      EXPECT_EQ(got.accepted, want.accepted);
      ASSERT_EQ(got.row.size(), want.row.size());
      for (size_t r = 0; r < want.row.size(); ++r) {
        EXPECT_EQ(got.row[r].token, want.row[r].token) << r;
        if (read.max_prob) EXPECT_EQ(got.row[r].max_prob, want.row[r].max_prob) << r;
        if (read.logprob) EXPECT_EQ(got.row[r].logprob, want.row[r].logprob) << r;
        if (!read.score.empty()) EXPECT_EQ(got.row[r].nll, want.row[r].nll) << r;
        ASSERT_EQ(got.row[r].top.size(), want.row[r].top.size());
        for (size_t k = 0; k < want.row[r].top.size(); ++k) {
          EXPECT_EQ(got.row[r].top[k].token, want.row[r].top[k].token) << r;
        }
      }
    }
  };
  for (const int n : {1, 4}) {
    const auto tokens = random_tokens(n, 64, static_cast<uint64_t>(n));
    for (const int vocab : {0, 999, 100000}) {
      expect_same(tokens, {.rows = counting(n), .warp = {.vocab = vocab}, .draw = true});
    }
    expect_same(tokens, {.rows = counting(n), .draw = true, .max_prob = true});
    expect_same(tokens, {.rows = counting(n), .top = 5});
    expect_same(tokens, {.rows = counting(n), .draw = true, .logprob = true});
    expect_same(tokens, {.rows = counting(n), .score = tokens});
  }
  // Two right drafts, then a wrong one and another.
  std::vector<Token> chain = {7};
  for (int i = 0; i < 2; ++i) {
    const Read last{.rows = {static_cast<Row>(i)}, .draw = true};
    chain.push_back(answer(chain, last, true).row[0].token);
  }
  const Read fourth{.rows = {2}, .draw = true};
  chain.push_back(answer(chain, fourth, true).row[0].token == 1 ? 2 : 1);
  chain.push_back(3);
  const Read judging{.rows = counting(5), .match = true};
  EXPECT_EQ(answer(chain, judging, true).accepted, 2);
  expect_same(chain, judging);
}

TEST(ForwardTypes, Float32RowsAreCloseToFloat64) {
  TinyModel single = tiny_model();
  single.dtype = DType::kFloat32;
  Driver d32(single);
  Driver d64(tiny_model());
  const auto tokens = random_tokens(40, 64, 4);
  expect_close(prefill(d32, tokens, 6), prefill(d64, tokens, 6), 1e-4);
}

TEST(ForwardTypes, BFloat16RowsAreNearFloat64) {
  TinyModel half = tiny_model();
  half.dtype = DType::kBFloat16;
  Driver d16(half);
  Driver d64(tiny_model());
  const auto tokens = random_tokens(20, 64, 4);
  const Rows got = prefill(d16, tokens, 6);
  const Rows want = prefill(d64, tokens, 6);
  double error = 0;
  for (size_t r = 0; r < want.size(); ++r) {
    for (size_t t = 0; t < 64; ++t) error += std::abs(got[r][t] - want[r][t]);
  }
  EXPECT_LT(error / (20 * 64), 0.1);
  EXPECT_EQ(d16.shape().dtype, "bf16");
}

// BF16 keys and values: close results, equally batch-invariant.
TEST(ForwardKv, BFloat16KeysAndValues) {
  if (!test_device_holds(DType::kFloat32, DType::kBFloat16)) {
    GTEST_SKIP() << "not on " << test_device().name();
  }
  TinyModel tiny = tiny_model();
  tiny.dtype = DType::kFloat32;
  Driver single(tiny);
  tiny.kv_dtype = DType::kBFloat16;
  Driver half(tiny);
  EXPECT_EQ(half.shape().page_bytes * 2, single.shape().page_bytes);
  const auto tokens = random_tokens(37, 64, 3);
  const Rows want = prefill(single, tokens, 6);
  const Rows got = prefill(half, tokens, 6);
  double error = 0;
  for (size_t r = 0; r < want.size(); ++r) {
    for (size_t t = 0; t < 64; ++t) error += std::abs(got[r][t] - want[r][t]);
  }
  EXPECT_LT(error / (37 * 64), 0.05);
  EXPECT_GT(error, 0);
  for (const int chunk : {1, 5, 36}) expect_rows(prefill(half, tokens, 6, kTop, chunk), got);
}

TEST(ForwardKv, Float64KeepsItsKeysAndValues) {
  auto device = TorchDevice::create({.threads = 1}, test_shared());
  ASSERT_TRUE(device.ok()) << device.status();
  TinyModel tiny = tiny_model();
  tiny.kv_dtype = DType::kBFloat16;
  const absl::Status status = tiny.load_into(**device, ModelId(0), 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "kv_dtype: DTYPE_BF16; allowed: unset with DTYPE_FP64");
}

TEST_P(Forward, WindowCutsByPosition) {
  DecoderConfig c = tiny_config();
  c.window = 7;
  Driver windowed(tiny(c));
  Driver full(tiny());
  const auto tokens = random_tokens(30, 64, 5);
  const Rows whole = prefill(windowed, tokens, 1);
  for (const int chunk : {1, 3, 8}) expect_rows(prefill(windowed, tokens, 1, kTop, chunk), whole);
  // In one layer a row reaches exactly seven rows back: other tokens before them change nothing.
  std::vector<Token> other = tokens;
  for (int i = 0; i < 23; ++i) other[static_cast<size_t>(i)] ^= 1;
  const Rows changed = prefill(windowed, other, 1);
  expect_rows({changed[29]}, {whole[29]});
  EXPECT_GT(std::abs(changed[28][0] - whole[28][0]), 1e-4);
  // Without the window every row sees all.
  const Rows unbound = prefill(full, tokens, 1);
  expect_rows({unbound.begin(), unbound.begin() + 7}, {whole.begin(), whole.begin() + 7});
  EXPECT_GT(std::abs(unbound[29][0] - whole[29][0]), 1e-4);
}

TEST_P(Forward, WideHeadsBiasesAndTiedHead) {
  DecoderConfig c = tiny_config();
  c.head_dim = 20;  // neither hidden / heads nor a multiple of a vector
  c.heads = 3;
  c.kv_heads = 1;
  c.qkv_bias = c.o_bias = c.mlp_bias = true;
  Driver d(tiny(c, 2, /*tied=*/true));
  const auto tokens = random_tokens(21, 64, 6);
  expect_rows(prefill(d, tokens, 6, kTop, 4), prefill(d, tokens, 6));
}

TEST_P(LayerRanges, EarlyReadIsAShallowerPass) {
  Driver d(tiny());
  const auto tokens = random_tokens(12, 64, 7);
  for (int at = 1; at <= 6; ++at) expect_rows(prefill(d, tokens, 6, at), prefill(d, tokens, at));
}

TEST_P(LayerRanges, SeveralLayersInOnePass) {
  Driver d(tiny());
  const auto tokens = random_tokens(9, 64, 8);
  Sequence s = d.sequence();
  Pass pass = chain_pass(6, tokens);
  for (const int at : {4, 2, kTop}) {
    Read read = all_logprobs({8, 3}, 64);
    read.at = at;
    pass.reading(read);
  }
  const Rows got = logprobs(d.run(s, pass));
  ASSERT_EQ(got.size(), 6U);
  size_t i = 0;
  for (const int at : {4, 2, 6}) {
    const Rows want = prefill(d, tokens, at);
    expect_rows({got[i], got[i + 1]}, {want[8], want[3]});
    i += 2;
  }
}

TEST_P(LayerRanges, ContinuedRowsAreAFullPass) {
  Driver d(tiny());
  const auto tokens = random_tokens(20, 64, 9);
  const Rows full = prefill(d, tokens, 6);
  for (int l = 1; l < 6; ++l) {
    Sequence s = d.sequence();
    d.run(s, chain_pass(l, std::span(tokens).first(14)), 5);
    // Rows 14.. join while the first ones come from the frontier.
    Pass rest = chain_pass(6, std::span(tokens).subspan(14));
    rest.reading(all_logprobs({-14, -2, -1, 0, 5}, 64));
    const Rows got = logprobs(d.run(s, rest));
    expect_rows(got, {full[0], full[12], full[13], full[14], full[19]});
    EXPECT_EQ(s.done, std::vector<int>(20, 6));
    d.release(s);
  }
}

// Sequences whose rows stopped at many different layers, brought to different layers in one batch.
TEST_P(LayerRanges, StaircasesInMixedBatches) {
  Driver d(tiny());
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    constexpr int kSequences = 4;
    std::vector<std::vector<Token>> tokens;
    std::vector<Sequence> sequences;
    std::vector<Pass> passes;
    for (int i = 0; i < kSequences; ++i) {
      tokens.push_back(random_tokens(24, 64, random()));
      Sequence& s = sequences.emplace_back(d.sequence());
      int to = 6;
      for (const int rows : {6, 5, 4}) {
        to -= static_cast<int>(random() % 3);
        if (to < 1) to = 1;
        d.run(s, chain_pass(
                     to, std::span(tokens.back())
                             .subspan(static_cast<size_t>(s.rows()), static_cast<size_t>(rows))));
      }
    }
    passes.reserve(kSequences);
    std::vector<Driver::Item> items;
    std::vector<Rows> want;
    for (size_t i = 0; i < kSequences; ++i) {
      const int to = 2 + static_cast<int>(random() % 5);
      const int count = static_cast<int>(random() % 9);
      const int before = sequences[i].rows();
      const int past =
          static_cast<int>(std::count_if(sequences[i].done.begin(), sequences[i].done.end(),
                                         [&](int done) { return done >= to; }));
      Pass& p = passes.emplace_back(chain_pass(
          to,
          std::span(tokens[i]).subspan(static_cast<size_t>(before), static_cast<size_t>(count))));
      RowList rows;
      for (int r = past - before; r < count; ++r) rows.push_back(r);
      p.reading(all_logprobs(rows, 64));
      items.push_back({&sequences[i], &p});
      const Rows all = prefill(d, {tokens[i].begin(), tokens[i].begin() + before + count}, to);
      want.emplace_back(all.begin() + past, all.end());
    }
    const auto results = d.run(items);
    for (size_t i = 0; i < kSequences; ++i) {
      ASSERT_TRUE(results[i].status.ok()) << results[i].status;
      expect_rows(logprobs(results[i].readout), want[i]);
    }
    for (Sequence& s : sequences) d.release(s);
  }
}

}  // namespace
}  // namespace tandem
