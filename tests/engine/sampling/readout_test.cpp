#include "engine/sampling/readout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/pass/constraint.h"
#include "engine/pass/rows.h"
#include "engine/sampling/race.h"
#include "engine/sampling/random.h"
#include "tests/engine/sampling/brute_force.h"
#include "tests/engine/sampling/statistics.h"
#include "tests/sanitized.h"

namespace tandem {
namespace {

using sampling::Purpose;
using sampling::race_key;
using testing::best_tokens;
using testing::processed;
using testing::softmax;
using testing::warped_probs;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A work over all outputs of a pass: the rows of every read in turn.
Work work_of(const Pass& pass, TicketId ticket) {
  Work work;
  work.pass = &pass;
  work.ticket = ticket;
  int out = 0;
  for (size_t r = 0; r < pass.read.size(); ++r) {
    for (size_t i = 0; i < pass.read[r].rows.size(); ++i) {
      work.outputs.push_back({static_cast<int>(r), static_cast<int>(i), out, out});
      ++out;
    }
  }
  return work;
}

Read read_of(size_t rows) {
  Read read;
  for (size_t i = 0; i < rows; ++i) read.rows.push_back(static_cast<Row>(i));
  return read;
}

std::vector<float> random_logits(size_t vocab, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(rng);
  return row;
}

Warp random_warp(std::mt19937& rng) {
  Warp w;
  w.temperature = std::vector<float>{0, 0.5f, 1, 1.7f}[rng() % 4];
  w.top_k = std::vector<int>{0, 0, 1, 4, 30}[rng() % 5];
  w.top_p = std::vector<float>{1, 1, 0.6f, 0.93f}[rng() % 4];
  w.min_p = std::vector<float>{0, 0, 0.03f, 0.4f}[rng() % 4];
  w.typical_p = std::vector<float>{1, 1, 0.5f, 0.9f}[rng() % 4];
  w.seed = rng();
  w.choice = rng() % 3;
  return w;
}

// Processors of a request.
std::shared_ptr<const Processors> random_processors(size_t vocab, std::mt19937& rng) {
  const auto token = [&] { return static_cast<Token>(rng() % vocab); };
  Processors p;
  p.prompt_tokens = static_cast<int>(rng() % 8);
  if (rng() % 2) p.repetition_penalty = 0.5f + static_cast<float>(rng() % 100) / 50;
  if (rng() % 2) p.presence_penalty = static_cast<float>(rng() % 100) / 25 - 2;
  if (rng() % 2) p.frequency_penalty = static_cast<float>(rng() % 100) / 25 - 2;
  std::map<Token, float> bias;
  for (size_t n = rng() % 4; n > 0; --n) bias[token()] = static_cast<float>(rng() % 100) / 25 - 2;
  if (vocab > 8 && rng() % 2) bias[token()] = -kInf;
  p.bias.assign(bias.begin(), bias.end());
  if (vocab > 8) p.ends = {token(), token()};
  p.min_new_tokens = static_cast<int>(rng() % 8);
  return std::make_shared<const Processors>(std::move(p));
}

// Rows of a work: a past, a frontier and a tree. Only the store knows some of the tokens, and some
// rows have none. Processors count them.
struct Rows {
  Rows(Pass& pass, size_t vocab, ValueStore& store, std::mt19937& rng) {
    const int before = static_cast<int>(rng() % 12);
    frontier = std::min(before, static_cast<int>(rng() % 3));
    std::vector<Picks> picks;
    const auto random_input = [&](int row) {
      In in = token_in(static_cast<Token>(rng() % vocab));
      token.push_back(in.id);
      if (rng() % 6 == 0) {
        in.kind = In::kMask;
        in.id = static_cast<int32_t>(rng() % 3);
        token.back() = -1;
      } else if (rng() % 4 == 0) {
        in.kind = In::kChosen;
        in.id = rng() % 2 ? 1 : kDrawn;
        in.ref.ticket = kTicket;
        in.ref.out = row;
        picks.push_back({row, in.id == kDrawn ? token.back() : -1, {0, token.back()}});
      }
      return in;
    };
    for (int row = 0; row < before; ++row) {
      const In in = random_input(row);
      history.push_back(in.kind == In::kToken ? in.id : in.kind == In::kMask ? -2 : -1);
      if (in.kind == In::kChosen) chosen.emplace_back(row, in);
    }
    for (int i = 0; i < 7; ++i) {
      pass.add.add(random_input(before + i),
                   static_cast<Row>(rng() % static_cast<size_t>(i + 1)) - 1);
    }
    store.put_picks(kTicket, std::move(picks));
  }
  void lower(Work& work) const {
    work.past = static_cast<int>(history.size()) - frontier;
    work.frontier.assign(static_cast<size_t>(frontier), 1);
    work.count = static_cast<int>(work.pass->add.size());
    work.history = history;
    work.history_chosen = chosen;
    for (Work::Output& o : work.outputs) {
      const Read& read = work.pass->read[static_cast<size_t>(o.read)];
      o.run_row = frontier + read.rows[static_cast<size_t>(o.index)];
    }
  }
  // Tokens up to and including run row j.
  std::vector<Token> path(const Work& work, int j) const {
    std::vector<Token> up;
    for (; j >= 0; j = parent_run_row(work, j))
      up.push_back(token[static_cast<size_t>(work.past + j)]);
    std::vector<Token> all(token.begin(), token.begin() + work.past);
    all.insert(all.end(), up.rbegin(), up.rend());
    return all;
  }

  static constexpr TicketId kTicket = 1'000'000;
  int frontier = 0;
  std::vector<Token> token;  // by row of the cache, then of the tree; -1: none
  std::vector<Token> history;
  std::vector<std::pair<int, In>> chosen;
};

// The winner of the race, in double precision; -1: too close to decide.
Token expected_draw(const std::vector<double>& p, sampling::RaceKey key) {
  Token first = -1;
  double least = INFINITY, second = INFINITY;
  for (size_t v = 0; v < p.size(); ++v) {
    if (p[v] <= 0) continue;
    const double u = (sampling::race_word(key, static_cast<uint32_t>(v)) + 0.5) * 0x1p-32;
    const double arrives = -std::log1p(-u) / p[v];
    second = std::min(second, std::max(least, arrives));
    if (arrives < least) first = static_cast<Token>(v);
    least = std::min(least, arrives);
  }
  return second < least * (1 + 1e-4) ? -1 : first;
}

TEST(RowReader, EveryFieldEqualsBruteForce) {
  std::mt19937 rng(1);
  ValueStore store;
  RowReader reader(&store);
  int draws = 0;
  for (TicketId ticket = 1; ticket <= 600; ++ticket) {
    const size_t vocab = 2 + rng() % 300;
    Pass pass;
    pass.share = rng() % 2 == 0;
    const Rows rows(pass, vocab, store, rng);
    for (size_t r = 0; r < 1 + rng() % 3; ++r) {
      Read read;
      for (size_t n = 1 + rng() % 4; n > 0; --n) {  // in any order, more than once
        read.rows.push_back(static_cast<Row>(rng() % static_cast<size_t>(7 + rows.frontier)) -
                            rows.frontier);
      }
      read.warp = random_warp(rng);
      if (rng() % 3 > 0) read.warp.processors = random_processors(vocab, rng);
      read.top = static_cast<int>(std::vector<size_t>{0, 1, 3, 10, 400}[rng() % 5]);
      read.draw = rng() % 2 == 0;
      read.max_prob = rng() % 2 == 0;
      read.logprob = rng() % 2 == 0;
      read.raw_logprob = rng() % 3 == 0;
      read.keep = rng() % 3 == 0;
      read.tentative = rng() % 3 == 0;
      read.round_start = static_cast<int>(rng() % 10);
      if (rng() % 2 == 0) {
        for (size_t i = 0; i < read.rows.size(); ++i) {
          read.score.push_back(static_cast<Token>(rng() % vocab));
        }
      }
      pass.reading(read);
    }
    Work work = work_of(pass, ticket);
    rows.lower(work);
    const std::vector<int> position = run_positions(work);
    std::vector<std::vector<float>> logits;
    reader.begin(work);
    for (const Work::Output& o : work.outputs) {
      logits.push_back(random_logits(vocab, rng));
      std::vector<float> row = logits.back();
      const absl::Status status = reader.read(o, row, position[static_cast<size_t>(o.run_row)]);
      ASSERT_TRUE(status.ok()) << status;
    }
    const Readout readout = reader.take();
    ASSERT_EQ(readout.row.size(), work.outputs.size());
    EXPECT_EQ(readout.accepted, 0);

    for (size_t i = 0; i < work.outputs.size(); ++i) {
      const Read& read = pass.read[static_cast<size_t>(work.outputs[i].read)];
      const Out& out = readout.row[i];
      const int run_row = work.outputs[i].run_row;
      const std::vector<double> raw = softmax({logits[i].begin(), logits[i].end()});
      std::vector<double> exact(logits[i].begin(), logits[i].end());
      if (read.warp.processors) {
        exact = processed(*read.warp.processors, rows.path(work, run_row), logits[i]);
      }
      const std::vector<float> x(exact.begin(), exact.end());
      const std::vector<double> plain = softmax(exact);
      const std::vector<double> warped = warped_probs(read.warp, exact);
      const std::vector<double>& for_logprob = read.raw_logprob     ? raw
                                               : read.warp.greedy() ? plain
                                                                    : warped;
      const auto near = [](double a, double b) {
        return a == b || std::abs(a - b) < 2e-5 * (1 + std::abs(b));
      };
      const std::vector<Token> best = best_tokens(x, 400);
      EXPECT_EQ(out.argmax, best[0]);
      if (read.max_prob) {
        EXPECT_NEAR(out.max_prob, plain[static_cast<size_t>(best[0])], 1e-5);
      } else {
        EXPECT_TRUE(std::isnan(out.max_prob));
      }
      if (read.score.empty()) {
        EXPECT_TRUE(std::isnan(out.nll));
      } else {
        const auto index = static_cast<size_t>(work.outputs[i].index);
        EXPECT_TRUE(near(out.nll, -std::log(plain[static_cast<size_t>(read.score[index])])));
      }
      ASSERT_EQ(out.top.size(), std::min(vocab, static_cast<size_t>(read.top)));
      for (size_t j = 0; j < out.top.size(); ++j) {
        EXPECT_EQ(out.top[j].token, best[j]);
        if (read.logprob) {
          const double p = for_logprob[static_cast<size_t>(best[j])];
          EXPECT_TRUE(near(out.top[j].logprob, std::log(p))) << out.top[j].logprob << " " << p;
        } else {
          EXPECT_TRUE(std::isnan(out.top[j].logprob));
        }
      }
      if (!read.draw) {
        EXPECT_EQ(out.token, -1);
      } else if (read.warp.greedy()) {
        EXPECT_EQ(out.token, out.argmax);
      } else {
        const auto key = race_key(read.warp.seed, read.warp.choice,
                                  read.keep || read.tentative ? Purpose::kDraft : Purpose::kToken,
                                  position[static_cast<size_t>(run_row)], read.round_start);
        const Token expected = expected_draw(warped, key);
        if (expected >= 0) {
          EXPECT_EQ(out.token, expected);
          ++draws;
        }
      }
      if (read.draw && read.logprob) {
        EXPECT_TRUE(near(out.logprob, std::log(for_logprob[static_cast<size_t>(out.token)])));
      } else if (read.logprob && !read.score.empty()) {
        const Token scored = read.score[static_cast<size_t>(work.outputs[i].index)];
        EXPECT_TRUE(near(out.logprob, std::log(for_logprob[static_cast<size_t>(scored)])));
      } else {
        EXPECT_TRUE(std::isnan(out.logprob));
      }
      ASSERT_EQ(store.dist(ticket, static_cast<int>(i)).ok(), read.keep);
      if (read.keep) {
        const auto dist = store.dist(ticket, static_cast<int>(i)).value();
        for (size_t t = 0; t < vocab; ++t) EXPECT_NEAR((*dist)[t], warped[t], 1e-5);
      }
      ValueRef ref;
      ref.ticket = ticket;
      ref.out = static_cast<int>(i);
      EXPECT_EQ(store.pick(ref, kDrawn).ok(), pass.share && read.draw);
      if (pass.share && read.draw) EXPECT_EQ(store.pick(ref, kDrawn).value(), out.token);
      for (size_t j = 0; pass.share && j < out.top.size(); ++j) {
        EXPECT_EQ(store.pick(ref, static_cast<int>(j)).value(), best[j]);
      }
    }
    store.forget(ticket);
    store.forget(Rows::kTicket);
  }
  EXPECT_EQ(store.size(), 0u);
  EXPECT_GT(draws, 200);
}

TEST(RowReader, HistoriesMustBeComplete) {
  ValueStore store;
  RowReader reader(&store);
  Pass pass;
  Read read = read_of(1);
  read.draw = true;
  Processors penalty;
  penalty.presence_penalty = 1;
  read.warp.processors = std::make_shared<const Processors>(penalty);
  pass.reading(read);
  pass.add.chain(token_in(1));
  Work work = work_of(pass, 3);
  work.past = 2;
  work.count = 1;
  std::vector<float> row = {1, 2};
  work.history = {1};
  reader.begin(work);
  EXPECT_EQ(reader.read(work.outputs[0], row, 2).message(),
            "pass 3: the history has 1 rows, the cache 2");
  work.history = {-2, -1};
  In chosen;
  chosen.kind = In::kChosen;
  chosen.id = kDrawn;
  chosen.ref.ticket = 2;
  work.history_chosen = {{1, chosen}};
  reader.begin(work);
  EXPECT_EQ(reader.read(work.outputs[0], row, 2).code(), absl::StatusCode::kInternal);
  store.put_picks(2, {{0, 1, {}}});
  reader.begin(work);
  EXPECT_TRUE(reader.read(work.outputs[0], row, 2).ok());
  EXPECT_EQ(row, (std::vector<float>{1, 1}));
  // A wrong position is an error: the counts are of another number of rows.
  reader.begin(work);
  EXPECT_EQ(reader.read(work.outputs[0], row, 5).message(),
            "pass 3, read 0, row 0 (position 5): it sees 3 rows");
}

// A sequence of passes over one cache, as the loop makes them: rows are appended, drafts rejected,
// the cache is truncated or lost and refilled, and some passes fail before they run. Each pass is
// answered with the counts of the passes before it, and by a recount of its whole history.
TEST(RowReader, KeptCountsEqualARecount) {
  std::mt19937 rng(7);
  ValueStore store;
  RowReader kept(&store), recounting(&store), other(&store);
  TicketId ticket = 0;
  for (int round = 0; round < 40; ++round) {
    const auto history = std::make_shared<TokenHistory>();
    const std::shared_ptr<const Processors> processors = random_processors(40, rng);
    std::vector<Token> text;  // by row of the cache; -2: no token
    size_t unknown = 0;       // its last rows, whose tokens only the store knows
    for (int step = 0; step < 60; ++step) {
      if (rng() % 6 == 0) {  // truncated, or preempted: lost and appended again by the next pass
        const size_t rows = rng() % 8 == 0 ? 0 : rng() % (text.size() + 1);
        text.resize(rows);
        unknown = std::min(unknown, rows);
        history->truncate(static_cast<int>(rows));
      }
      Pass pass;
      const int added = 1 + static_cast<int>(rng() % 5);
      std::vector<Token> tokens;
      for (int i = 0; i < added; ++i) {
        tokens.push_back(rng() % 7 ? static_cast<Token>(rng() % 40) : -2);
        In in = token_in(tokens.back());
        if (tokens.back() < 0) in.kind = In::kMask;
        pass.add.add(in,
                     rng() % 2 ? i - 1 : static_cast<Row>(rng() % static_cast<size_t>(i + 1)) - 1);
      }
      Read read;
      for (Row i = 0; i < added; ++i) read.rows.push_back(i);
      read.warp.processors = processors;
      pass.reading(read);
      Work work = work_of(pass, ++ticket);
      const auto frontier = static_cast<int>(rng() % (std::min<size_t>(text.size(), 3) + 1));
      work.past = static_cast<int>(text.size()) - frontier;
      work.frontier.assign(static_cast<size_t>(frontier), 1);
      work.count = added;
      for (Work::Output& o : work.outputs) o.run_row += frontier;
      work.history = text;
      for (size_t row = text.size() - unknown; row < text.size(); ++row) {
        if (text[row] < 0) continue;
        In in;
        in.kind = In::kChosen;
        in.id = kDrawn;
        in.ref = {.ticket = 1'000'000 + static_cast<TicketId>(row)};
        store.put_picks(in.ref.ticket, {{0, text[row], {}}});
        work.history[row] = -1;
        work.history_chosen.emplace_back(static_cast<int>(row), in);
      }
      Work incremental = work;
      incremental.token_history = history;
      incremental.history_begin = history->known();
      incremental.history.erase(incremental.history.begin(),
                                incremental.history.begin() + history->known());
      std::erase_if(incremental.history_chosen,
                    [&](const auto& chosen) { return chosen.first < incremental.history_begin; });
      const std::vector<int> position = run_positions(work);
      RowReader& reader = rng() % 2 ? kept : other;  // devices read on several threads
      reader.begin(incremental);
      recounting.begin(work);
      const bool fails = rng() % 8 == 0;
      for (const Work::Output& o : work.outputs) {
        std::vector<float> a = random_logits(40, rng), b = a;
        const int at = position[static_cast<size_t>(o.run_row)];
        if (fails && o.index > 0) break;
        ASSERT_TRUE(reader.read(o, a, at).ok());
        ASSERT_TRUE(recounting.read(o, b, at).ok());
        ASSERT_EQ(a, b) << round << " " << step;
      }
      if (!fails && rng() % 3 > 0) {  // rows of a chain stay
        for (int i = 0; i < added && pass.add.parent[static_cast<size_t>(i)] == i - 1; ++i) {
          text.push_back(tokens[static_cast<size_t>(i)]);
          ++unknown;
        }
      }
      if (rng() % 4 == 0) unknown = 0;
    }
  }
}

TEST(RowReader, PaddingIsIgnored) {
  ValueStore store;
  RowReader reader(&store);
  Pass pass;
  Read read = read_of(1);
  read.warp.temperature = 1;
  read.warp.vocab = 3;
  read.draw = read.keep = read.max_prob = read.logprob = true;
  read.top = 9;
  pass.reading(read);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    pass.read[0].warp.seed = seed;
    const Work work = work_of(pass, 1);
    std::vector<float> row = {0, std::log(2.0f), 0, 50, kInf};
    reader.begin(work);
    ASSERT_TRUE(reader.read(work.outputs[0], row, 0).ok());
    const Readout readout = reader.take();
    EXPECT_LT(readout.row[0].token, 3);
    EXPECT_EQ(readout.row[0].argmax, 1);
    EXPECT_NEAR(readout.row[0].max_prob, 0.5, 1e-6);
    EXPECT_EQ(readout.row[0].top.size(), 3u);
    EXPECT_EQ(store.dist(1, 0).value()->size(), 3u);
    store.forget(1);
  }
}

TEST(RowReader, ReadsMaySplitOverChunks) {
  std::mt19937 rng(2);
  ValueStore store;
  RowReader reader(&store);
  Pass pass;
  pass.share = true;
  Read drawn = read_of(4);
  drawn.draw = true;
  drawn.top = 2;
  pass.reading(drawn).reading(drawn);
  const Work whole = work_of(pass, 9);
  Work first = whole;
  Work second = whole;  // interleaved: rows 0, 1 of both reads, then 2, 3
  first.outputs = {whole.outputs[0], whole.outputs[1], whole.outputs[4], whole.outputs[5]};
  second.outputs = {whole.outputs[2], whole.outputs[3], whole.outputs[6], whole.outputs[7]};
  std::vector<Token> tokens(8);
  for (const Work* work : {&first, &second}) {
    reader.begin(*work);
    for (const Work::Output& o : work->outputs) {
      std::vector<float> row = random_logits(50, rng);
      ASSERT_TRUE(reader.read(o, row, o.index).ok());
    }
    const Readout readout = reader.take();
    ASSERT_EQ(readout.row.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      tokens[static_cast<size_t>(work->outputs[i].out)] = readout.row[i].token;
      EXPECT_EQ(readout.row[i].top[0].token, readout.row[i].token);
    }
  }
  for (int out = 0; out < 8; ++out) {
    ValueRef ref;
    ref.ticket = 9;
    ref.out = out;
    EXPECT_EQ(store.pick(ref, kDrawn).value(), tokens[static_cast<size_t>(out)]);
  }
}

TEST(RowReader, ATokenDependsOnItsPositionOnly) {
  std::mt19937 rng(4);
  const std::vector<float> logits = random_logits(200, rng);
  RowReader reader(nullptr);
  std::vector<Token> tokens;
  for (const int round_start : {0, 3, 9}) {
    Pass pass;
    Read read = read_of(static_cast<size_t>(1 + round_start));  // another place in another pass
    pass.stage.first = 5 * round_start;                         // and in another cache
    read.warp.temperature = 2;
    read.warp.seed = 77;
    read.draw = true;
    read.round_start = round_start;
    pass.reading(read);
    const Work work = work_of(pass, 1);
    reader.begin(work);
    for (const Work::Output& o : work.outputs) {
      std::vector<float> row = logits;
      ASSERT_TRUE(reader.read(o, row, 100 + o.index - round_start - pass.stage.first).ok());
    }
    tokens.push_back(reader.take().row.back().token);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(tokens[0], tokens[2]);
}

TEST(RowReader, BadRowsFailTheirWorkAndNameTheRow) {
  RowReader reader(nullptr);
  Pass pass;
  Read read = read_of(3);
  read.draw = true;
  pass.reading(read);
  const Work work = work_of(pass, 12);
  for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
    reader.begin(work);
    std::vector<float> row = {1, 2, 3};
    ASSERT_TRUE(reader.read(work.outputs[0], row, 5).ok());
    row = {1, bad, 3};
    const absl::Status status = reader.read(work.outputs[1], row, 6);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(status.message(),
              "pass 12, read 0, row 1 (position 6): NaN or +Inf among the logits, or nothing but "
              "-Inf");
  }
  reader.begin(work);
  std::vector<float> row = {-kInf, -kInf};
  EXPECT_EQ(reader.read(work.outputs[0], row, 5).code(), absl::StatusCode::kInternal);

  reader.begin(work);  // and the next work is not touched by it
  for (const Work::Output& o : work.outputs) {
    row = {-kInf, 4, -kInf};
    ASSERT_TRUE(reader.read(o, row, o.index).ok());
  }
  const Readout readout = reader.take();
  ASSERT_EQ(readout.row.size(), 3u);
  EXPECT_EQ(readout.row[2].token, 1);
}

// -- chains of drafts --

constexpr size_t kVocab = 4;

// Logits by the last two tokens.
std::vector<float> table_row(uint32_t model, Token before, Token last) {
  std::mt19937 rng(model * 1000 + static_cast<uint32_t>(before + 1) * 50 +
                   static_cast<uint32_t>(last + 1));
  std::normal_distribution<float> normal(0, 1.2f);
  std::vector<float> row(kVocab);
  for (float& x : row) x = normal(rng);
  return row;
}

struct Model {
  explicit Model(uint32_t number) {
    for (Token a = -1; a < static_cast<Token>(kVocab); ++a) {
      for (Token b = -1; b < static_cast<Token>(kVocab); ++b)
        rows.push_back(table_row(number, a, b));
    }
  }
  const std::vector<float>& operator()(const std::vector<Token>& seq) const {
    const Token last = seq.empty() ? -1 : seq.back();
    const Token before = seq.size() < 2 ? -1 : seq[seq.size() - 2];
    return rows[static_cast<size_t>(before + 1) * (kVocab + 1) + static_cast<size_t>(last + 1)];
  }
  std::vector<std::vector<float>> rows;
};

// Appends the rows of a sequence: one without a token, then one per token, so that the logits after
// n tokens are those of row n. The pass adds the last `added` rows.
void feed(const std::vector<Token>& tokens, size_t added, Pass& pass, Work& work) {
  std::vector<Token> rows = {-2};
  rows.insert(rows.end(), tokens.begin(), tokens.end());
  const auto past = static_cast<std::ptrdiff_t>(rows.size() - added);
  work.history.assign(rows.begin(), rows.begin() + past);
  work.past = static_cast<int>(past);
  work.count = static_cast<int>(added);
  for (auto t = rows.begin() + past; t != rows.end(); ++t) {
    In in = token_in(*t);
    if (*t < 0) in.kind = In::kMask;
    pass.add.chain(in);
  }
}

// One round of the speculative method: gamma draft passes, which keep distributions for the ratio
// rule, and one pass that verifies.
class Speculation {
 public:
  Speculation(const Model& target, const Model& draft, Warp warp, bool match = false)
      : target_(target), draft_(draft), warp_(warp), match_(match), reader_(&store_) {}

  // `greedy_drafts`: the drafts are the argmax. REQUIRES: then `match`.
  void round(std::vector<Token>& seq, size_t gamma, bool greedy_drafts = false) {
    const int start = static_cast<int>(seq.size());
    std::vector<Token> y = seq;
    DistRef against;
    std::vector<TicketId> tickets;
    for (size_t i = 0; i < gamma; ++i) {
      Pass pass;
      Read read = read_of(1);
      read.warp = warp_;
      read.draw = true;
      read.keep = !match_;
      read.round_start = start;
      pass.reading(read);
      Work work = work_of(pass, next_++);
      feed(y, 1, pass, work);
      tickets.push_back(work.ticket);
      reader_.begin(work);
      std::vector<float> row = draft_(y);
      EXPECT_TRUE(reader_.read(work.outputs[0], row, static_cast<int>(y.size())).ok());
      Readout readout = reader_.take();
      y.push_back(greedy_drafts ? readout.row[0].argmax : readout.row[0].token);
    }
    against.ticket = tickets[0];
    against.more.assign(tickets.begin() + 1, tickets.end());

    Pass pass;
    Read read = read_of(gamma + 1);
    read.warp = warp_;
    if (match_) {
      read.match = true;
    } else {
      read.against = against;
    }
    read.logprob = true;
    read.round_start = start;
    pass.reading(read);
    Work work = work_of(pass, next_++);
    feed(y, gamma + 1, pass, work);
    reader_.begin(work);
    std::vector<Token> prefix = seq;
    for (size_t i = 0; i <= gamma; ++i) {
      const Token drafted = i < gamma ? y[seq.size() + i] : -1;
      std::vector<float> row = target_(prefix);
      EXPECT_TRUE(reader_.read(work.outputs[i], row, start + static_cast<int>(i), drafted).ok());
      prefix.push_back(drafted);
    }
    last_ = reader_.take();
    const auto accepted = static_cast<size_t>(last_.accepted);
    for (size_t i = 0; i <= accepted; ++i) {
      if (i < accepted) EXPECT_EQ(last_.row[i].token, y[seq.size()]);
      EXPECT_FALSE(std::isnan(last_.row[i].logprob));
      seq.push_back(last_.row[i].token);
    }
    for (size_t i = accepted + 1; i <= gamma; ++i) EXPECT_EQ(last_.row[i].token, -1);
    store_.forget(tickets);
  }

  const Readout& last() const { return last_; }
  size_t stored() const { return store_.size(); }

 private:
  const Model& target_;
  const Model& draft_;
  Warp warp_;
  bool match_;
  ValueStore store_;
  RowReader reader_;
  TicketId next_ = 1;
  Readout last_;
};

// How often speculation yields each text of 3 tokens, numbered in order, of kDraws seeds.
std::vector<int64_t> count_texts(const Model& target, const Model& draft, Warp warp) {
  const size_t n = kVocab;
  std::vector<int64_t> counts(n * n * n);
  for (warp.seed = 0; warp.seed < test::kDraws; ++warp.seed) {
    Speculation s(target, draft, warp);
    std::vector<Token> seq;
    while (seq.size() < 3) s.round(seq, 2);
    size_t text = 0;
    for (size_t i = 0; i < 3; ++i) text = text * n + static_cast<size_t>(seq[i]);
    ++counts[text];
  }
  return counts;
}

TEST(RowReader, ChainsFollowTheWarpedTarget) {
  const Model target(1);
  const Model draft(2);
  Warp warp;
  warp.temperature = 0.8f;
  warp.top_p = 0.95f;
  std::vector<double> joint;
  const auto n = static_cast<Token>(kVocab);
  for (Token a = 0; a < n; ++a) {
    for (Token b = 0; b < n; ++b) {
      for (Token c = 0; c < n; ++c) {
        joint.push_back(warped_probs(warp, target({}))[static_cast<size_t>(a)] *
                        warped_probs(warp, target({a}))[static_cast<size_t>(b)] *
                        warped_probs(warp, target({a, b}))[static_cast<size_t>(c)]);
      }
    }
  }
  EXPECT_GT(testing::chi_square_p(count_texts(target, draft, warp), joint), 1e-4);
}

// p and q have the same processors, and each draft counts the drafts before it.
TEST(RowReader, ChainsFollowTheProcessedTarget) {
  const Model target(1);
  const Model draft(2);
  Warp warp;
  warp.temperature = 0.9f;
  warp.typical_p = 0.97f;
  Processors p;
  p.prompt_tokens = 1;
  p.repetition_penalty = 1.6f;
  p.presence_penalty = 0.4f;
  p.frequency_penalty = 0.7f;
  p.bias = {{0, 0.5f}, {2, -kInf}};
  p.ends = {3};
  p.min_new_tokens = 1;
  const auto n = static_cast<Token>(kVocab);
  // Probabilities of all texts of 3 tokens, with penalties for the tokens before.
  const auto joint_of = [&](const auto& counted) {
    std::vector<double> joint;
    const auto next = [&](const std::vector<Token>& seq, Token t) {
      std::vector<Token> path = {-1};
      for (const Token token : counted(seq)) path.push_back(token);
      return warped_probs(warp, processed(p, path, target(seq)))[static_cast<size_t>(t)];
    };
    for (Token a = 0; a < n; ++a) {
      for (Token b = 0; b < n; ++b) {
        for (Token c = 0; c < n; ++c) {
          const double of_a = next({}, a);
          const double of_b = of_a > 0 ? next({a}, b) : 0;
          joint.push_back(of_a * of_b * (of_b > 0 ? next({a, b}, c) : 0));
        }
      }
    }
    return joint;
  };
  const auto joint = joint_of([](std::vector<Token> seq) { return seq; });
  // The distribution if the drafts of the first two tokens did not count.
  const auto forgetful =
      joint_of([](const std::vector<Token>& seq) { return std::vector<Token>(seq.size(), -1); });
  warp.processors = std::make_shared<const Processors>(p);
  const auto counts = count_texts(target, draft, warp);
  EXPECT_GT(testing::chi_square_p(counts, joint), 1e-4);
  if (!test::kSanitized) EXPECT_LT(testing::chi_square_p(counts, forgetful), 1e-6);
}

TEST(RowReader, GreedyChainsAreTheTargetsOwnTokens) {
  for (uint32_t model = 1; model < 60; ++model) {
    const Model target(model);
    const Model draft(model % 3 == 0 ? model : model + 100);
    Speculation s(target, draft, Warp());
    std::vector<Token> seq;
    std::vector<Token> expected;
    while (seq.size() < 12) {
      s.round(seq, 3);
      if (model % 3 == 0) EXPECT_EQ(s.last().accepted, 3);
    }
    while (expected.size() < seq.size()) expected.push_back(best_tokens(target(expected), 1)[0]);
    EXPECT_EQ(seq, expected);
    EXPECT_EQ(s.stored(), 0u);
  }
}

// Judged by match, a chain equals the target's own draws, and its own drafts are all accepted.
TEST(RowReader, MatchedChainsAreTheTargetsOwnDraws) {
  Warp warp;
  warp.temperature = 1.1f;
  warp.min_p = 0.02f;
  int64_t rounds = 0, accepted = 0;
  for (warp.seed = 0; warp.seed < 2000; ++warp.seed) {
    const bool same = warp.seed % 4 == 0;
    const Model target(1);
    const Model draft(same ? 1 : 2);
    for (const bool greedy_drafts : {false, true}) {
      Speculation s(target, draft, warp, /*match=*/true);
      std::vector<Token> seq;
      std::vector<Token> expected;
      while (seq.size() < 8) {
        s.round(seq, 3, greedy_drafts);
        if (same && !greedy_drafts) EXPECT_EQ(s.last().accepted, 3);
        ++rounds;
        accepted += s.last().accepted;
      }
      while (expected.size() < seq.size()) {
        const Token t = expected_draw(
            warped_probs(warp, target(expected)),
            race_key(warp.seed, 0, Purpose::kToken, static_cast<int>(expected.size())));
        if (t < 0) break;
        expected.push_back(t);
      }
      seq.resize(expected.size());
      ASSERT_EQ(seq, expected);
      EXPECT_EQ(s.stored(), 0u) << "no distribution is kept";
    }
  }
  EXPECT_GT(accepted, rounds / 2);
}

TEST(RowReader, SkipsRowsBehindARejectedDraft) {
  RowReader reader(nullptr);
  Pass pass;
  Read read = read_of(3);
  read.match = true;
  read.top = 1;
  pass.reading(read);
  const Work work = work_of(pass, 6);
  reader.begin(work);
  std::vector<float> row = {1, 2};
  EXPECT_TRUE(reader.read(work.outputs[0], row, 0, 0).ok());
  row = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(reader.read(work.outputs[1], row, 1, 1).ok()) << "what a wrong token leads to";
  EXPECT_TRUE(reader.read(work.outputs[2], row, 2, -1).ok());
  const Readout readout = reader.take();
  ASSERT_EQ(readout.row.size(), 3u);
  EXPECT_EQ(readout.row[0].token, 1);
  EXPECT_EQ(readout.row[0].top.size(), 1u);
  EXPECT_EQ(readout.row[1].token, -1);
  EXPECT_TRUE(readout.row[2].top.empty());
}

// A draft equal to the target's tokens is fully accepted, and the bonus is AR's token.
TEST(RowReader, TheBonusIsTheTokenThatArDraws) {
  const Model model(5);
  Warp warp;
  warp.temperature = 1;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    warp.seed = seed;
    Speculation s(model, model, warp);
    std::vector<Token> seq;
    s.round(seq, 3);
    ASSERT_EQ(s.last().accepted, 3);
    const std::vector<Token> prefix(seq.begin(), seq.begin() + 3);
    const Token ar =
        expected_draw(warped_probs(warp, model(prefix)), race_key(seed, 0, Purpose::kToken, 3));
    if (ar >= 0) EXPECT_EQ(seq[3], ar);
  }
}

// Tokens that may follow any answer.
class FixedConstraint final : public TokenConstraint {
 public:
  explicit FixedConstraint(std::vector<uint32_t> bits) {
    auto legal = std::make_shared<LegalTokens>();
    legal->bits = std::move(bits);
    legal_ = std::move(legal);
  }
  std::shared_ptr<const LegalTokens> after(std::span<const Token> /*answer*/) override {
    return legal_;
  }
  void prepare(std::vector<Token> /*answer*/) override {}
  std::shared_ptr<const LegalTokens> known(std::span<const Token> /*answer*/) override {
    return legal_;
  }
  size_t legal_drafts(std::span<const Token> /*answer*/, std::span<const Token> drafts) override {
    return drafts.size();
  }
  std::span<const Token> ends() const override { return ends_; }

 private:
  std::shared_ptr<const LegalTokens> legal_;
  const std::vector<Token> ends_{170};
};

// A read of the first ids and some single ones equals one of a whole row in which all other ids are
// impossible. Their logits may be anything, as devices leave them.
TEST(RowReader, SingleIdsEqualAWholeRow) {
  std::mt19937 rng(12);
  ValueStore store;
  RowReader reader(&store);
  int single = 0, constrained = 0;
  for (TicketId ticket = 1; ticket <= 2000; ticket += 2) {
    const size_t vocab = 190;
    const int first = 1 + static_cast<int>(rng() % 100);
    std::vector<Token> more;
    for (auto t = static_cast<Token>(rng() % 120); t < 200; t += 1 + Token(rng() % 40)) {
      more.push_back(t);  // also ids below the first ones' end and beyond the row's
    }
    const auto may_draw = [&](size_t t) {
      return t < size_t(first) || std::ranges::find(more, Token(t)) != more.end();
    };
    Read read = read_of(1);
    read.warp = random_warp(rng);
    if (rng() % 2) read.warp.processors = random_processors(vocab, rng);
    if (rng() % 4 == 0) {
      Processors p = read.warp.processors ? *read.warp.processors : Processors();
      std::vector<uint32_t> bits(6);
      for (uint32_t& word : bits) word = static_cast<uint32_t>(rng() & rng());
      bits[0] |= 1;
      p.bias.clear();
      p.ends.clear();
      p.constraint = std::make_shared<FixedConstraint>(bits);
      read.warp.processors = std::make_shared<const Processors>(std::move(p));
      ++constrained;
    }
    read.top = static_cast<int>(rng() % 12);
    read.draw = read.max_prob = read.logprob = true;
    read.raw_logprob = rng() % 3 == 0;
    read.keep = rng() % 2 == 0;
    do {
      read.score = {static_cast<Token>(rng() % vocab)};
    } while (!may_draw(size_t(read.score[0])));

    const std::vector<float> logits = random_logits(vocab, rng);
    std::vector<float> row = logits, whole = logits;
    for (size_t t = 0; t < vocab; ++t) {
      if (may_draw(t)) continue;
      row[t] = std::vector<float>{std::nanf(""), kInf, 1e30f}[rng() % 3];
      whole[t] = -kInf;
    }
    const auto read_by = [&](const Warp& warp, TicketId by, std::vector<float> from) {
      Pass pass;
      pass.add.chain(token_in(3));
      pass.reading(read).read[0].warp = warp;
      Work work = work_of(pass, by);
      work.count = 1;
      reader.begin(work);
      const absl::Status status = reader.read(work.outputs[0], from, 0);
      EXPECT_TRUE(status.ok()) << status;
      return reader.take();
    };
    const Readout want = read_by(read.warp, ticket, whole);
    Warp limited = read.warp;
    limited.vocab = first;
    limited.more_ids = std::make_shared<const std::vector<Token>>(more);
    const Readout got = read_by(limited, ticket + 1, row);
    ASSERT_EQ(got.row.size(), 1u);

    const Out &g = got.row[0], &w = want.row[0];
    const auto near = [](float a, float b) {
      return a == b || std::abs(a - b) < 2e-5f * (1 + std::abs(b));
    };
    EXPECT_EQ(g.argmax, w.argmax);
    EXPECT_EQ(g.token, w.token);
    single += g.token >= first ? 1 : 0;
    EXPECT_TRUE(near(g.max_prob, w.max_prob));
    EXPECT_TRUE(near(g.nll, w.nll));
    EXPECT_TRUE(near(g.logprob, w.logprob)) << g.logprob << " " << w.logprob;
    EXPECT_TRUE(near(g.score_logprob, w.score_logprob));
    for (size_t i = 0; i < g.top.size(); ++i) {
      if (!may_draw(size_t(w.top[i].token))) break;  // impossible ones follow, by id
      EXPECT_EQ(g.top[i].token, w.top[i].token);
      EXPECT_TRUE(near(g.top[i].logprob, w.top[i].logprob));
    }
    if (read.keep) {
      const auto p = store.dist(ticket, 0).value(), q = store.dist(ticket + 1, 0).value();
      for (size_t t = 0; t < vocab; ++t) {
        EXPECT_NEAR((*p)[t], t < q->size() ? (*q)[t] : 0, 1e-5) << t;
      }
    }
    store.forget(ticket);
    store.forget(ticket + 1);
    if (HasFailure()) break;
  }
  EXPECT_GT(single, 100);
  EXPECT_GT(constrained, 150);
}

TEST(RowReader, SingleIdsThatMayNotBeRead) {
  RowReader reader(nullptr);
  Pass pass;
  pass.add.chain(token_in(3));
  Read read = read_of(1);
  read.warp.vocab = 2;
  read.warp.more_ids = std::make_shared<const std::vector<Token>>(std::vector<Token>{5});
  EXPECT_FALSE(RowReader::can_ask(read)) << "devices answer about the first ids alone";
  read.score = {4};
  pass.reading(read);
  read.score.clear();
  read.match = true;
  pass.reading(read);
  read.match = false;
  Processors p;
  p.constraint = std::make_shared<FixedConstraint>(std::vector<uint32_t>{1 << 4});
  read.warp.processors = std::make_shared<const Processors>(p);
  read.draw = true;
  pass.reading(read);
  Work work = work_of(pass, 1);
  work.count = 1;
  for (Work::Output& o : work.outputs) o.run_row = 0;
  const std::vector<float> logits = {1, 2, 9, 9, 9, 3, 9};
  const auto error = [&](size_t output) {
    std::vector<float> row = logits;
    reader.begin(work);
    return std::string(reader.read(work.outputs[output], row, 0).message());
  };
  EXPECT_EQ(error(0), "pass 1, read 0, row 0 (position 0): score of token 4; vocabulary 3");
  EXPECT_EQ(error(1), "pass 1, read 1, row 0 (position 0): single ids of a read that judges");
  EXPECT_EQ(error(2), "");
  EXPECT_EQ(reader.take().row[0].token, 0) << "nothing legal may be drawn: a dead end";
}

TEST(RowReader, AChainNeedsItsDraftsAndTheirDistributions) {
  ValueStore store;
  RowReader reader(&store);
  Pass pass;
  Read read = read_of(3);
  read.warp.temperature = 1;
  read.against.ticket = 5;
  pass.reading(read);
  const Work work = work_of(pass, 6);
  std::vector<float> row = {1, 2};
  reader.begin(work);
  EXPECT_EQ(reader.read(work.outputs[0], row, 0, -1).code(), absl::StatusCode::kInternal);
  reader.begin(work);
  EXPECT_EQ(reader.read(work.outputs[0], row, 0, 1).message(),
            "pass 5 kept no distribution of its output 0");
  // Both drafts of one pass: its outputs in order.
  store.put_dist(5, 0, {0, 1});
  store.put_dist(5, 1, {0, 1});
  reader.begin(work);
  EXPECT_TRUE(reader.read(work.outputs[0], row, 0, 1).ok());
  EXPECT_TRUE(reader.read(work.outputs[1], row, 1, 1).ok());
  EXPECT_TRUE(reader.read(work.outputs[2], row, 2, -1).ok());
  const Readout readout = reader.take();
  EXPECT_EQ(readout.row.size(), 3u);
}

}  // namespace
}  // namespace tandem
