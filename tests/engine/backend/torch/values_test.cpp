// Hidden rows that passes store, and rows conditioned on them or on an adapter's mask tokens.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/shared.h"
#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using Rows = std::vector<std::vector<float>>;

constexpr int kHidden = 32;  // of the tiny model and the golden one
constexpr int kVocab = 64;
constexpr Token kSpare = 50;  // tokens from here on are in no text
constexpr PoolSize kSize = {.page_rows = 4, .pages = 100, .frontier_pages = 50, .values = 16};

Pass reading_last(Pass pass, int vocab = kVocab) {
  pass.reading(all_logprobs({static_cast<Row>(pass.add.size()) - 1}, vocab));
  return pass;
}

In embedded(TicketId ticket, int out, Token token, bool replace) {
  In in;
  in.kind = In::kEmbed;
  in.id = token;
  in.ref = {ticket, out, replace};
  return in;
}

In mask(int i) {
  In in;
  in.kind = In::kMask;
  in.id = i;
  return in;
}

Read hidden_rows(int n, int at) {
  Read left;
  left.at = at;
  left.hidden = true;
  for (Row i = 0; i < n; ++i) left.rows.push_back(i);
  return left;
}

WorkResult run(Driver& on, const Pass& pass, std::vector<Work::Embed> embeds = {}) {
  Sequence s = on.sequence();
  const Driver::Item item{.sequence = &s, .pass = &pass, .embeds = std::move(embeds)};
  std::vector<WorkResult> results = on.run({&item, 1});
  on.release(s);
  return std::move(results[0]);
}

Rows answers(Driver& on, const Pass& pass, std::vector<Work::Embed> embeds = {}) {
  const WorkResult result = run(on, pass, std::move(embeds));
  EXPECT_TRUE(result.status.ok()) << result.status;
  return logprobs(result.readout);
}

// For a pass whose first n rows are fed with the model's first places.
std::vector<Work::Embed> places(const Driver& of, int n) {
  std::vector<Work::Embed> all;
  for (int i = 0; i < n; ++i) all.push_back({i, of.model(), PageId(i)});
  return all;
}

// Runs the text on `on`, which leaves its rows after `at` layers in its first places.
TicketId leave(Driver& on, const std::vector<Token>& text, int at, int chunk = 100) {
  const auto n = static_cast<int>(text.size());
  Sequence s = on.sequence();
  Pass pass = chain_pass(on.layers(), text);
  pass.reading(hidden_rows(n, at));
  const TicketId ticket = Driver::new_ticket();
  for (int first = 0; first < n; first += chunk) {
    const Driver::Item item{&s, &pass, first, std::min(chunk, n - first), ticket};
    const std::vector<WorkResult> results = on.run({&item, 1});
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    for (const Out& o : results[0].readout.row) EXPECT_EQ(o.argmax, -1) << "it has no answer";
  }
  on.release(s);
  return ticket;
}

double number(const at::Tensor& rows, int64_t row, size_t column) {
  return static_cast<const double*>(rows[row].const_data_ptr())[column];
}

// Bits where the device keeps them.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return test_device_keeps_bits() ? a.equal(b) : a.allclose(b, 1e-9, 1e-9);
}

class TorchValues : public testing::Test {
 protected:
  TorchValues() : text(random_tokens(5, kSpare, 3)) {}

  at::Tensor left() const {  // by leave(main, text, ..)
    return shared->pool(main.model())->hidden.narrow(0, 0, 5).cpu().clone();
  }
  const double* embedding(Token token) const {
    return &own.values.at("model.embed_tokens.weight")[static_cast<size_t>(token) * kHidden];
  }
  // What a model says to tokens kSpare, kSpare + 1, ... that have these embeddings.
  Rows with_embeddings(const at::Tensor& rows) {
    TinyModel tiny = tiny_model();
    std::vector<double>& table = tiny.values.at("model.embed_tokens.weight");
    std::memcpy(&table[static_cast<size_t>(kSpare) * kHidden], rows.const_data_ptr(),
                static_cast<size_t>(rows.numel()) * sizeof(double));
    Driver driver(tiny, shared, 5, kSize);
    std::vector<Token> tokens;
    for (Token i = 0; i < rows.size(0); ++i) tokens.push_back(kSpare + i);
    return answers(driver, reading_last(chain_pass(6, tokens)));
  }
  // Fed with the rows that pass `by` left, the last of them first.
  Pass fed(TicketId by, bool replace) const {
    Pass pass;
    pass.stage.to = 6;
    for (int i = 0; i < 5; ++i) {
      pass.add.chain(embedded(by, i, replace ? -1 : text[static_cast<size_t>(4 - i)], replace));
    }
    return reading_last(std::move(pass));
  }

  const std::shared_ptr<TorchShared> shared = test_shared();
  const TinyModel own = tiny_model();
  Driver main{own, shared, 0, kSize}, other{own, shared, 1, kSize};
  const std::vector<Token> text;
};

TEST_F(TorchValues, ARowIsTheOutputOfALayer) {
  leave(main, text, 3);
  const at::Tensor rows = left();
  leave(main, text, 3, 2);
  EXPECT_TRUE(same(rows, left())) << "in chunks";
  Sequence s = main.sequence();
  main.run(s, chain_pass(3, text));
  const at::Tensor frontier = shared->pool(main.model())->frontier.cpu();
  for (int64_t i = 0; i < 5; ++i) {
    const int64_t slot = int64_t{s.frontier_pages[static_cast<size_t>(i / 4)].value} * 4 + i % 4;
    EXPECT_TRUE(same(rows[i], frontier[slot])) << i;
  }
}

TEST_F(TorchValues, RowsReplaceTokensOrAreAddedToThem) {
  for (const int at : {3, kTop}) {
    const TicketId by = leave(main, text, at);
    const at::Tensor rows = left();
    for (const bool replace : {true, false}) {
      at::Tensor want = rows.clone();
      for (int i = 0; i < 5 && !replace; ++i) {
        const double* e = embedding(text[static_cast<size_t>(4 - i)]);
        for (int k = 0; k < kHidden; ++k)
          static_cast<double*>(want[i].mutable_data_ptr())[k] += e[k];
      }
      const Rows expected = with_embeddings(want);
      const Pass pass = fed(by, replace);
      expect_rows(answers(main, pass, places(main, 5)), expected);
      expect_rows(answers(other, pass, places(main, 5)), expected);  // another device's
    }
  }
}

// Rows after no layer are the embeddings themselves.
TEST_F(TorchValues, ATokensOwnEmbeddingIsTheToken) {
  const TicketId by = leave(main, text, 0);
  Pass pass;
  pass.stage.to = 6;
  for (int i = 0; i < 5; ++i) pass.add.chain(embedded(by, i, -1, true));
  expect_rows(answers(other, reading_last(std::move(pass)), places(main, 5)),
              answers(other, reading_last(chain_pass(6, text))));
}

// Conditioned rows that decode, in a batch with sequences that decode tokens: each sees its own
// past.
TEST_F(TorchValues, DecodedRowsAmongOthers) {
  const TicketId by = leave(main, text, 2);
  const at::Tensor rows = left();
  Sequence a = other.sequence(), b = other.sequence(), c = other.sequence();
  const std::vector<Token> start = {7, 8, 9};
  for (Sequence* s : {&a, &b, &c}) other.run(*s, chain_pass(6, start));
  const auto row = [&](const In& in) {
    Pass pass;
    pass.stage.to = 6;
    pass.add.chain(in);
    return reading_last(std::move(pass));
  };
  const Pass replaced = row(embedded(by, 3, -1, true)), token = row(token_in(4)),
             added = row(embedded(by, 1, 6, false));
  std::vector<Driver::Item> items{{.sequence = &a, .pass = &replaced},
                                  {.sequence = &b, .pass = &token},
                                  {.sequence = &c, .pass = &added}};
  items[0].embeds = {{0, main.model(), PageId(3)}};
  items[2].embeds = {{0, main.model(), PageId(1)}};
  const std::vector<WorkResult> got = other.run(items);

  TinyModel tiny = tiny_model();
  std::vector<double>& table = tiny.values.at("model.embed_tokens.weight");
  double* spare = &table[static_cast<size_t>(kSpare) * kHidden];
  for (size_t k = 0; k < kHidden; ++k) {
    spare[k] = number(rows, 3, k);
    spare[kHidden + k] = number(rows, 1, k) + embedding(6)[k];
  }
  Driver reference(tiny, shared, 5, kSize);
  const Token fed_tokens[] = {kSpare, 4, kSpare + 1};
  for (size_t i = 0; i < 3; ++i) {
    std::vector<Token> all = start;
    all.push_back(fed_tokens[i]);
    ASSERT_TRUE(got[i].status.ok()) << got[i].status;
    expect_rows(logprobs(got[i].readout), answers(reference, reading_last(chain_pass(6, all))));
  }
}

TEST_F(TorchValues, AnswersAndRowsOfOnePass) {
  Pass pass = chain_pass(6, text);
  pass.reading(all_logprobs({1}, kVocab))
      .reading(hidden_rows(5, 4))
      .reading(all_logprobs({4}, kVocab));
  const Readout both = run(main, pass).readout;
  ASSERT_EQ(both.row.size(), 7U);
  Pass plain = chain_pass(6, text);
  plain.reading(all_logprobs({1, 4}, kVocab));
  const Rows want = answers(main, plain), got = logprobs(both);
  expect_row(got[0], want[0]);
  expect_row(got[6], want[1]);
}

// A row is named by the pass that wrote it: its place may have held another row before.
TEST_F(TorchValues, RowsThatWereNotWrittenAreRefusedAlone) {
  const TicketId by = leave(main, text, 3);
  const auto status = [&](const Work::Embed& place, TicketId written_by) {
    Pass pass;
    pass.stage.to = 6;
    pass.add.chain(embedded(written_by, 0, -1, true));
    pass = reading_last(std::move(pass));
    const Pass beside = reading_last(chain_pass(6, text));
    Sequence s = other.sequence(), t = other.sequence();
    std::vector<Driver::Item> items{{.sequence = &s, .pass = &pass},
                                    {.sequence = &t, .pass = &beside}};
    if (place.row >= 0) items[0].embeds = {place};
    const std::vector<WorkResult> results = other.run(items);
    other.release(s);
    other.release(t);
    EXPECT_TRUE(results[1].status.ok()) << results[1].status;
    return results[0].status;
  };
  EXPECT_TRUE(status({0, main.model(), PageId(0)}, by).ok());
  EXPECT_THAT(std::string(status({0, main.model(), PageId(0)}, by + 1000).message()),
              HasSubstr("has not written it"));
  EXPECT_FALSE(status({0, main.model(), PageId(5)}, by).ok()) << "unowned";
  EXPECT_FALSE(status({0, main.model(), PageId(16)}, by).ok()) << "beyond the pool";
  EXPECT_FALSE(status({0, ModelId(12345), PageId(0)}, by).ok()) << "an unknown model";
  EXPECT_FALSE(status({-1, main.model(), PageId(0)}, by).ok()) << "it lies nowhere";
  // A failed pass writes nothing.
  Pass failing = chain_pass(6, text);
  failing.reading(hidden_rows(1, 3)).reading(all_logprobs({0}, kVocab));
  failing.read[1].at = 5;
  failing.read[1].head = HeadId(3);
  const TicketId failed = Driver::new_ticket();
  Sequence s = main.sequence();
  const Driver::Item item{.sequence = &s, .pass = &failing, .ticket = failed};
  EXPECT_FALSE(main.run({&item, 1})[0].status.ok());
  EXPECT_FALSE(status({0, main.model(), PageId(0)}, failed).ok());
}

// Logits beyond the buffer are computed in blocks, with equal results.
TEST_F(TorchValues, ManyReadsOfOnePass) {
  DecoderConfig config = tiny_config();
  config.vocab_size = 50000;
  config.layers = 1;
  TinyModel tiny = tiny_model(config, 1, true);
  tiny.dtype = DType::kFloat32;
  Driver driver(tiny, shared, 5,
                {.page_rows = 16, .pages = 60, .frontier_pages = 0, .values = 400});
  const std::vector<Token> text = random_tokens(400, config.vocab_size, 9);
  const auto read = [&](int chunk) {
    Sequence s = driver.sequence();
    Pass pass = chain_pass(1, text);
    pass.reading(hidden_rows(400, kTop));
    Read wanted;
    for (Row i = 0; i < 400; ++i) wanted.rows.push_back(i);
    wanted.max_prob = true;
    pass.reading(wanted);
    std::vector<std::pair<Token, float>> all;
    for (int first = 0; first < 400; first += chunk) {
      const Driver::Item item{&s, &pass, first, chunk, 1};
      const std::vector<WorkResult> results = driver.run({&item, 1});
      for (const Out& o : results[0].readout.row) {
        if (o.argmax >= 0) all.emplace_back(o.argmax, o.max_prob);
      }
    }
    driver.release(s);
    return all;
  };
  const auto whole = read(400);
  EXPECT_EQ(whole.size(), 400U);
  const auto chunks = read(80);
  ASSERT_EQ(chunks.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(chunks[i].first, whole[i].first) << i;
    expect_row({chunks[i].second}, {whole[i].second});
  }
}

std::vector<float> numbers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
  std::vector<float> all(n);
  std::ranges::generate(all, [&] { return uniform(random); });
  return all;
}

// With adapters, which a golden model of three layers has in files.
class TorchAdapters : public testing::Test {
 protected:
  static constexpr int kInner = 8;

  ExtraConfig projector(const std::string& name, int source, bool zero = false) {
    std::vector<test::Matrix> tensors{
        {"0.weight", {kInner, source}, numbers(static_cast<size_t>(kInner * source), 1)},
        {"0.bias", {kInner}, numbers(kInner, 2)},
        {"2.weight", {kHidden, kInner}, numbers(size_t{kHidden} * kInner, 3)},
        {"2.bias", {kHidden}, numbers(kHidden, 4)}};
    for (size_t i = 2; i < 4 && zero; ++i) std::ranges::fill(tensors[i].values, 0.0f);
    return folders.write(
        name,
        {{"kind", "projector"},
         {"layer", 2},
         {"fusion", "add"},
         {"tokens", "shared"},
         {"source", {{"hidden_size", source}, {"layers", 6}, {"fingerprint", "0011223344556677"}}}},
        tensors);
  }
  ExtraConfig masks() {
    return folders.write("masks", {{"kind", "masks"}}, {{"masks", {3, kHidden}, mask_rows}});
  }
  Driver load(std::vector<ExtraConfig> extras, DType dtype = DType::kFloat64) const {
    ModelConfig m{.name = "golden", .path = golden.directory(), .dtype = dtype};
    m.extras = std::move(extras);
    return Driver(m, kSize, shared, 1);
  }
  // Fed with five rows that `by` left, in place of tokens or beside the text's, through an adapter.
  Pass fed(TicketId by, AdapterId adapter, bool replace, int vocab) const {
    Pass pass;
    pass.stage.to = 3;
    pass.adapter = adapter;
    for (int i = 0; i < 5; ++i) {
      pass.add.chain(embedded(by, i, replace ? -1 : text[static_cast<size_t>(i)], replace));
    }
    return reading_last(std::move(pass), vocab);
  }
  // Puts rows of one's own into a model's places, as pass `by` would.
  void put(const Driver& to, const at::Tensor& rows, TicketId by) const {
    KvPool* const pool = shared->pool(to.model());
    const c10::InferenceMode inference;
    pool->hidden.narrow(0, 0, rows.size(0)).copy_(rows);
    for (int64_t i = 0; i < rows.size(0); ++i) pool->written_by[static_cast<size_t>(i)] = by;
  }
  static void expect_near(const Rows& got, const Rows& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t v = 0; v < want[0].size(); ++v) EXPECT_NEAR(got[0][v], want[0][v], 1e-5) << v;
  }

  const Golden golden{"llama2"};
  const test::AdapterFolders folders{golden.directory()};
  const std::shared_ptr<TorchShared> shared = test_shared();
  const std::vector<float> mask_rows = numbers(size_t{3} * kHidden, 5);
  const std::vector<Token> text = random_tokens(5, 60, 3);
};

// Linear, ReLU, Linear of rows from a model of another width and another type of numbers.
TEST_F(TorchAdapters, RowsGoThroughTheProjector) {
  DecoderConfig config = tiny_config();
  config.hidden_size = 48;
  TinyModel tiny = tiny_model(config, 2);
  tiny.dtype = DType::kFloat32;
  Driver source(tiny, shared, 0, kSize);
  Driver target = load({masks(), projector("own", 48)});
  ASSERT_EQ(target.shape().adapters.size(), 2U);
  EXPECT_EQ(target.shape().adapters[1].source, 48);
  const TicketId by = leave(source, text, 2);
  const at::Tensor rows = shared->pool(source.model())->hidden.narrow(0, 0, 5).cpu();
  const std::vector<float> a = numbers(size_t{kInner} * 48, 1), a_bias = numbers(kInner, 2),
                           b = numbers(size_t{kHidden} * kInner, 3), b_bias = numbers(kHidden, 4);
  at::Tensor want = at::empty({5, kHidden}, at::kDouble);
  for (int64_t i = 0; i < 5; ++i) {
    const auto* row = static_cast<const float*>(rows[i].const_data_ptr());
    double inner[kInner];
    for (size_t m = 0; m < kInner; ++m) {
      inner[m] = a_bias[m];
      for (size_t k = 0; k < 48; ++k) inner[m] += double{a[m * 48 + k]} * row[k];
      inner[m] = std::max(inner[m], 0.0);
    }
    auto* out = static_cast<double*>(want[i].mutable_data_ptr());
    for (size_t k = 0; k < kHidden; ++k) {
      out[k] = b_bias[k];
      for (size_t m = 0; m < kInner; ++m) out[k] += double{b[k * kInner + m]} * inner[m];
    }
  }
  put(target, want, 77);
  const int vocab = target.shape().vocab_size;
  for (const bool replace : {true, false}) {
    expect_near(answers(target, fed(by, AdapterId(1), replace, vocab), places(source, 5)),
                answers(target, fed(77, AdapterId(), replace, vocab), places(target, 5)));
  }
}

TEST_F(TorchAdapters, AZeroProjectorAddsNothing) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kInt8}) {
    if (!test_device_holds(dtype)) continue;
    Driver driver = load({projector("zero", kHidden, true)}, dtype);
    const int vocab = driver.shape().vocab_size;
    const TicketId by = leave(driver, text, 2);
    expect_rows(answers(driver, fed(by, AdapterId(0), false, vocab), places(driver, 5)),
                answers(driver, reading_last(chain_pass(3, text), vocab)), rounding_of(dtype));
  }
}

TEST_F(TorchAdapters, MasksAreRowsOfTheAdaptersTable) {
  Driver driver = load({masks()});
  const int vocab = driver.shape().vocab_size;
  Pass pass = chain_pass(3, text);
  pass.adapter = AdapterId(0);
  for (int i = 2; i >= 0; --i) pass.add.chain(mask(i));
  pass = reading_last(std::move(pass), vocab);
  at::Tensor rows = at::empty({3, kHidden}, at::kDouble);
  for (size_t i = 0; i < mask_rows.size(); ++i) {
    static_cast<double*>(rows.mutable_data_ptr())[i] = mask_rows[i];
  }
  put(driver, rows, 77);
  Pass want = chain_pass(3, text);
  for (int i = 2; i >= 0; --i) want.add.chain(embedded(77, i, -1, true));
  want = reading_last(std::move(want), vocab);
  std::vector<Work::Embed> at;
  for (int i = 0; i < 3; ++i) at.push_back({5 + i, driver.model(), PageId(2 - i)});
  expect_rows(answers(driver, pass), answers(driver, want, at));
}

TEST_F(TorchAdapters, WhatDoesNotFitIsRefused) {
  Driver driver = load({masks(), projector("narrow", 24)});
  const TicketId by = leave(driver, text, 1);
  const auto said = [&](const In& in, AdapterId adapter) {
    Pass pass;
    pass.stage.to = 3;
    pass.adapter = adapter;
    pass.add.chain(in);
    std::vector<Work::Embed> embeds;
    if (in.kind == In::kEmbed) embeds = places(driver, 1);
    const WorkResult result = run(driver, reading_last(std::move(pass), 10), embeds);
    return std::string(result.status.message());
  };
  EXPECT_EQ(said(mask(2), AdapterId(0)), "");
  EXPECT_EQ(said(mask(3), AdapterId(0)), "mask row: 3; allowed: 0 to 2");
  EXPECT_EQ(said(mask(-1), AdapterId(0)), "mask row: -1; allowed: 0 to 2");
  EXPECT_THAT(said(mask(0), AdapterId()), HasSubstr("none: the pass has no adapter with masks"));
  EXPECT_THAT(said(mask(0), AdapterId(1)), HasSubstr("none: the pass has no adapter with masks"));
  EXPECT_EQ(said(mask(0), AdapterId(2)), "adapter: 2; allowed: 0 to 1");
  EXPECT_EQ(said(embedded(by, 0, -1, true), AdapterId(1)),
            "width of an embedded row: 32; allowed: 24, the adapter's");
  EXPECT_EQ(said(embedded(by, 0, -1, true), AdapterId(0)), "") << "bare";
  EXPECT_THAT(said(embedded(by, 0, 1 << 20, false), AdapterId()), HasSubstr("token: 1048576"));
}

}  // namespace
}  // namespace tandem
