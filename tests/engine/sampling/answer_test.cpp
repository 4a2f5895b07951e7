// Readouts from a device's answers equal those from the rows, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/sampling/readout.h"

namespace tandem {
namespace {

constexpr int kVocab = 130;
constexpr int kPast = 10;
constexpr int kPrompt = 4;

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void expect_same(const Readout& got, const Readout& want) {
  ASSERT_EQ(got.row.size(), want.row.size());
  EXPECT_EQ(got.accepted, want.accepted);
  for (size_t i = 0; i < want.row.size(); ++i) {
    const Out& g = got.row[i];
    const Out& w = want.row[i];
    EXPECT_EQ(g.token, w.token) << i;
    EXPECT_EQ(g.argmax, w.argmax) << i;
    EXPECT_TRUE(same(g.max_prob, w.max_prob)) << i;
    EXPECT_TRUE(same(g.nll, w.nll)) << i;
    EXPECT_TRUE(same(g.logprob, w.logprob)) << i << ": " << g.logprob << " " << w.logprob;
    EXPECT_TRUE(same(g.score_logprob, w.score_logprob)) << i;
    ASSERT_EQ(g.top.size(), w.top.size());
    for (size_t t = 0; t < w.top.size(); ++t) {
      EXPECT_EQ(g.top[t].token, w.top[t].token) << i;
      EXPECT_TRUE(same(g.top[t].logprob, w.top[t].logprob)) << i;
    }
  }
}

struct Case {
  Pass pass;
  Work work;
  std::vector<std::vector<float>> rows;
  std::vector<Token> drafts;  // by row; -1: none

  explicit Case(Read read, std::mt19937& rng) {
    std::normal_distribution<float> normal(0, 2);
    for (size_t i = 0; i < read.rows.size(); ++i) {
      pass.add.chain(token_in(static_cast<Token>(rng() % 40)));
      std::vector<float>& row = rows.emplace_back(kVocab);
      for (float& x : row) x = std::round(4 * normal(rng)) / 4;  // with ties
      drafts.push_back(-1);
    }
    pass.reading(std::move(read));
    work.pass = &pass;
    work.ticket = 1;
    for (int i = 0; i < static_cast<int>(rows.size()); ++i) work.outputs.push_back({0, i, i, i});
    // The rows before it; the answer begins at kPrompt.
    work.past = kPast;
    for (int i = 0; i < kPast; ++i) work.history.push_back(static_cast<Token>(rng() % 40));
    work.count = static_cast<int>(rows.size());
  }

  // The readout or error, from rows or from answers.
  absl::StatusOr<Readout> read_by(bool answers) {
    RowReader reader(nullptr), asker(nullptr);
    reader.begin(work);
    asker.begin(work);
    Questions all;
    all.changes.resize(3);  // of other rows
    for (size_t i = 0; i < rows.size(); ++i) {
      const Work::Output& o = work.outputs[i];
      const int position = kPast + static_cast<int>(i);
      absl::Status status;
      if (answers) {
        const auto q = asker.ask(o, position, kVocab, {}, all);
        if (!q.ok()) return q.status();
        std::vector<float> row = rows[i];
        const RowAnswer a = answer_row(std::span<float>(row).first(static_cast<size_t>(q->vocab)),
                                       *q, {.changes = all.changes.data()});
        status = reader.read(o, a, position, kVocab, drafts[i]);
      } else {
        std::vector<float> row = rows[i];
        status = reader.read(o, row, position, drafts[i]);
      }
      if (!status.ok()) return status;
    }
    return reader.take();
  }
};

Read random_read(size_t rows, std::mt19937& rng) {
  Read read;
  for (size_t i = 0; i < rows; ++i) read.rows.push_back(static_cast<Row>(i));
  read.warp.temperature = std::vector<float>{0, 1e-35f, 0.4f, 1, 2.5f}[rng() % 5];
  read.warp.seed = rng();
  read.warp.choice = rng() % 3;
  if (rng() % 3 == 0) read.warp.vocab = 100;
  read.top = static_cast<int>(rng() % (kAnsweredTop + 1));
  read.draw = rng() % 2 == 0;
  read.tentative = rng() % 3 == 0;
  read.round_start = static_cast<int>(rng() % 10);
  read.max_prob = rng() % 2 == 0;
  read.logprob = rng() % 2 == 0;
  read.raw_logprob = rng() % 3 == 0;
  if (rng() % 2 == 0) read.score = {static_cast<Token>(rng() % 100)};
  return read;
}

// Truncation, penalties, biases and bans, each at times.
void add_processing(Read& read, std::mt19937& rng) {
  const auto one_of = [&](std::vector<float> all) { return all[rng() % all.size()]; };
  Warp& warp = read.warp;
  warp.top_k = static_cast<int>(one_of({0, 0, 1, 7, 99}));
  warp.top_p = one_of({1, 0.2f, 0.9f, 0.99f});
  warp.min_p = one_of({0, 0, 0.05f, 1});
  Processors p;
  p.prompt_tokens = kPrompt;
  p.repetition_penalty = one_of({1, 1.1f, 0.8f});
  p.frequency_penalty = one_of({0, 0.3f, -0.2f});
  p.presence_penalty = one_of({0, 0.7f});
  for (Token t = 0; t < kVocab; t += 1 + static_cast<Token>(rng() % 30)) {
    const float bias = static_cast<float>(rng() % 9) - 4;
    p.bias.emplace_back(t, rng() % 3 == 0 ? -std::numeric_limits<float>::infinity() : bias);
  }
  p.min_new_tokens = static_cast<int>(one_of({0, 3, 7, 9}));
  p.ends = {static_cast<Token>(rng() % 40), 3, 200};
  if (rng() % 4 == 0) return;
  warp.processors = std::make_shared<const Processors>(std::move(p));
  read.raw_logprob = false;
}

TEST(RowAnswer, EqualsTheRow) {
  std::mt19937 rng(5);
  for (int i = 0; i < 1200; ++i) {
    Read read = random_read(2, rng);
    if (i >= 400) add_processing(read, rng);
    ASSERT_TRUE(RowReader::can_ask(read));
    Case c(read, rng);
    const auto want = c.read_by(false);
    const auto got = c.read_by(true);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    expect_same(*got, *want);
  }
}

// A row of the cache and two of the pass have tokens that only the device knows.
TEST(RowAnswer, PenaltiesCountDraftsOfTheDevice) {
  std::mt19937 rng(8);
  int tokens_again = 0;
  for (int i = 0; i < 300; ++i) {
    Read read = random_read(3, rng);
    add_processing(read, rng);
    Case c(read, rng);
    ValueStore known, unknown;
    std::vector<RowAnswer> kept(4);
    const auto draft = [&](int n) {
      RowAnswer& a = kept[static_cast<size_t>(n)];
      a.valid = 1;
      a.drawn = static_cast<Token>(rng() % 6);
      Picks picks;
      picks.token = a.drawn;
      known.put_picks(static_cast<TicketId>(10 + n), {picks});
      In in;
      in.kind = In::kChosen;
      in.id = kDrawn;
      in.ref.ticket = static_cast<TicketId>(10 + n);
      return in;
    };
    c.work.history.back() = -1;
    c.work.history_chosen = {{kPast - 1, draft(1)}};
    c.pass.add.in[1] = draft(2);
    c.pass.add.in[2] = draft(3);
    tokens_again += kept[2].drawn == kept[3].drawn ? 1 : 0;
    const auto cached_of = [](const In& in) -> std::optional<ChosenToken> {
      return ChosenToken{static_cast<int32_t>(in.ref.ticket) - 10, ChosenToken::kDrawn};
    };
    RowReader host(&known), asker(&unknown), reader(&unknown);
    for (RowReader* const r : {&host, &asker, &reader}) r->begin(c.work);
    Questions all;
    for (size_t row = 0; row < 3; ++row) {
      const Work::Output& o = c.work.outputs[row];
      const int position = kPast + static_cast<int>(row);
      std::vector<float> logits = c.rows[row];
      ASSERT_TRUE(host.read(o, logits, position).ok());
      const auto q = asker.ask(o, position, kVocab, cached_of, all);
      ASSERT_TRUE(q.ok()) << q.status();
      logits = c.rows[row];
      const RowAnswer a = answer_row(std::span<float>(logits).first(static_cast<size_t>(q->vocab)),
                                     *q, {all.changes.data(), all.drafts.data(), kept.data()});
      ASSERT_TRUE(reader.read(o, a, position, kVocab).ok());
      const bool counts = read.warp.processors != nullptr && read.warp.processors->has_penalties();
      EXPECT_EQ(q->drafts, counts ? static_cast<int>(row) + 1 : 0);
    }
    expect_same(reader.take(), host.take());
    if (read.warp.processors == nullptr || !read.warp.processors->has_penalties()) continue;
    RowReader refused(&unknown);
    refused.begin(c.work);
    EXPECT_FALSE(refused.ask(c.work.outputs[0], kPast, kVocab, {}, all).ok());
  }
  EXPECT_GT(tokens_again, 10);
}

TEST(RowAnswer, JudgesDraftsAlike) {
  std::mt19937 rng(6);
  int rejected = 0;
  for (int i = 0; i < 200; ++i) {
    Read read = random_read(4, rng);
    read.match = true;
    if (i % 2 == 1) add_processing(read, rng);
    Case c(read, rng);
    // Drafts equal the draws of the rows, up to one that differs.
    c.drafts = {0, 0, 0, -1};
    for (size_t row = 0; row < 3; ++row) {
      const auto drawn = c.read_by(false);
      ASSERT_TRUE(drawn.ok());
      c.drafts[row] = drawn->row[row].token;
      if (i % 4 == static_cast<int>(row)) {
        c.drafts[row] = (c.drafts[row] + 1) % 90;
        ++rejected;
        break;
      }
    }
    const auto want = c.read_by(false);
    const auto got = c.read_by(true);
    ASSERT_TRUE(want.ok() && got.ok());
    expect_same(*got, *want);
  }
  EXPECT_EQ(rejected, 150);
}

TEST(RowAnswer, FailsWhereTheRowDoes) {
  std::mt19937 rng(7);
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  for (const float x : bad) {
    Case c(random_read(1, rng), rng);
    c.rows[0][17] = x;
    EXPECT_EQ(c.read_by(true).status(), c.read_by(false).status());
    EXPECT_FALSE(c.read_by(true).ok());
  }
  Read read = random_read(1, rng);
  read.score = {kVocab};
  Case c(read, rng);
  EXPECT_EQ(c.read_by(true).status(), c.read_by(false).status());
  read.match = true;
  read.rows.push_back(1);
  read.score.clear();
  Case chain(read, rng);
  EXPECT_EQ(chain.read_by(true).status(), chain.read_by(false).status());
  EXPECT_FALSE(chain.read_by(true).ok());
}

TEST(RowAnswer, CanAskOnlyForSupportedReads) {
  Read read;
  EXPECT_TRUE(RowReader::can_ask(read));
  Read keeps = read;
  keeps.keep = true;
  EXPECT_FALSE(RowReader::can_ask(keeps));
  Read long_list = read;
  long_list.top = kAnsweredTop + 1;
  EXPECT_FALSE(RowReader::can_ask(long_list));
  Read processed = read;
  processed.warp.processors = std::make_shared<const Processors>();
  EXPECT_TRUE(RowReader::can_ask(processed));
  processed.logprob = processed.raw_logprob = true;
  EXPECT_FALSE(RowReader::can_ask(processed)) << "two distributions";
  Read cut = read;
  cut.draw = true;
  cut.warp.temperature = 1;
  cut.warp.top_p = 0.9f;
  EXPECT_TRUE(RowReader::can_ask(cut));
  cut.warp.typical_p = 0.9f;
  EXPECT_FALSE(RowReader::can_ask(cut));
  cut.draw = false;
  EXPECT_TRUE(RowReader::can_ask(cut)) << "nothing is drawn";
  cut.draw = true;
  cut.warp.temperature = 0;
  EXPECT_TRUE(RowReader::can_ask(cut)) << "greedy";
  Read ratio = read;
  ratio.against.ticket = 3;
  EXPECT_TRUE(RowReader::can_ask(ratio)) << "greedy";
  ratio.warp.temperature = 1;
  EXPECT_FALSE(RowReader::can_ask(ratio));
}

}  // namespace
}  // namespace tandem
