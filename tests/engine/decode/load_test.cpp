// The default method under load against autoregressive decoding, by tokens per second of the whole
// server.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/decode/autoregressive.h"
#include "engine/decode/ngram.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/pacing/saved_numbers.h"
#include "engine/decode/speculative.h"
#include "tests/engine/decode/load_simulation.h"
#include "tests/sanitized.h"

namespace tandem::test {
namespace {

// The pair of models/README.md on two cores of a Zen 5 (docs/throughput.md).
const DeviceTime kLargeTime{{{1, 0.0235},
                             {2, 0.0242},
                             {4, 0.0253},
                             {8, 0.0275},
                             {16, 0.043},
                             {32, 0.083},
                             {64, 0.165},
                             {150, 0.386},
                             {256, 0.66}},
                            0.0005};
const DeviceTime kSmallTime{
    {{1, 0.0071}, {2, 0.0075}, {4, 0.0081}, {8, 0.0096}, {16, 0.0155}, {32, 0.0285}, {150, 0.126}},
    0.00035};

// The same on two cores with AVX2 only, by bench_step. Few rows already cost more than one.
const DeviceTime kLargeTimeOfAvx2{{{1, 0.0311},
                                   {2, 0.0333},
                                   {4, 0.0486},
                                   {5, 0.0571},
                                   {8, 0.0817},
                                   {16, 0.152},
                                   {64, 0.55},
                                   {256, 2.1}},
                                  0.0005};
const DeviceTime kSmallTimeOfAvx2{{{1, 0.0125},
                                   {2, 0.0131},
                                   {4, 0.0182},
                                   {5, 0.0217},
                                   {8, 0.0316},
                                   {16, 0.0592},
                                   {64, 0.21},
                                   {256, 0.8}},
                                  0.00035};

// The same on two AVX-512 cores of a Xeon, with products of eight rows at once: nine rows take a
// third longer than eight. Measured up to 16 rows of the large model; the others are estimates.
const DeviceTime kLargeTimeWithStep{{{1, 0.043},
                                     {2, 0.045},
                                     {4, 0.050},
                                     {8, 0.067},
                                     {9, 0.089},
                                     {12, 0.097},
                                     {16, 0.127},
                                     {32, 0.226},
                                     {64, 0.42},
                                     {256, 1.55}},
                                    0.0005};
const DeviceTime kSmallTimeWithStep{{{1, 0.013},
                                     {2, 0.0135},
                                     {4, 0.0155},
                                     {8, 0.021},
                                     {9, 0.028},
                                     {16, 0.038},
                                     {64, 0.13},
                                     {256, 0.48}},
                                    0.00035};

// The same with products of 16 rows at once: from eight rows on, a row takes about a tenth of a
// pass. Measured up to 16 rows of the large model; the others are estimates.
const DeviceTime kLargeTimeOfXeon{{{1, 0.040},
                                   {2, 0.043},
                                   {4, 0.050},
                                   {8, 0.063},
                                   {10, 0.073},
                                   {12, 0.087},
                                   {16, 0.109},
                                   {32, 0.21},
                                   {64, 0.39},
                                   {256, 1.5}},
                                  0.0005};
const DeviceTime kSmallTimeOfXeon{
    {{1, 0.0145}, {2, 0.015}, {4, 0.017}, {8, 0.021}, {16, 0.038}, {64, 0.13}, {256, 0.48}},
    0.00035};

Load load_of(int clients) {
  Load load;
  load.clients = clients;
  load.warm = 20 + clients;
  load.measured = 60 + 10 * clients;
  load.large = kLargeTime;
  load.small = kSmallTime;
  load.copied = 0.35;
  load.script = {.seed = 5, .vocab_size = 1000, .agreement = 0.82, .foresight = 0.6};
  load.script.masks = {{0.56}};
  return load;
}

// Answers that are edits of a file in the prompt.
Load editing_of(int clients) {
  Load load = load_of(clients);
  load.prompt = 560;
  load.answer = 300;
  load.copied = 0;
  load.edits_every = 48;
  load.history_tokens = 1 << 16;
  load.warm = 60 + 2 * clients;
  load.measured = 240 + 30 * clients;
  return load;
}

Served autoregressive_of(Load load) {
  load.method = autoregressive;
  load.two_models = false;
  return serve(load);
}
Served automatic_of(Load load, int masks, std::shared_ptr<AcceptanceStats> stats = nullptr) {
  SpeculativeParams a;
  a.draft_tokens = 12;
  a.pace = Pace::kFastest;
  a.num_masks = load.masks = masks;
  a.stats = stats ? std::move(stats) : std::make_shared<AcceptanceStats>();
  load.method = [a](Gen g) { return speculative(g, a); };
  return serve(load);
}
Served lookup_of(Load load) {
  NgramParams a;
  a.draft_tokens = 64;
  a.pace = Pace::kFastest;
  a.stats = std::make_shared<AcceptanceStats>();
  load.method = [a](Gen g) { return ngram(g, a); };
  load.two_models = false;
  return serve(load);
}

// Prints what the expectations are about.
double ratio(const std::string& what, int clients, const Served& served, const Served& plain) {
  EXPECT_TRUE(served.right && plain.right) << what;
  const double r = served.tokens_per_second / plain.tokens_per_second;
  std::printf(
      "%-28s %2d clients: %6.1f tokens/s, %.2f of %.1f; %.1f requests a batch, %.2f small\n",
      what.c_str(), clients, served.tokens_per_second, r, plain.tokens_per_second,
      served.requests_per_batch, served.small_batches);
  return r;
}

// The default and look-ups, next to autoregressive decoding.
void loses_nothing(const std::string& what, const Load& load) {
  const Served plain = autoregressive_of(load);
  EXPECT_GE(ratio(what, load.clients, automatic_of(load, 1), plain), 0.98);
  EXPECT_GE(ratio(what + ", look-ups", load.clients, lookup_of(load), plain), 0.98);
}

// Under sanitizers the first and the fourth: the figures are those of the build without.
template <class T>
std::vector<T> some(std::vector<T> all) {
  return kSanitized ? std::vector<T>{all[0], all[all.size() > 3 ? 3 : 1]} : all;
}
const std::vector<int> kClients = some<int>({1, 2, 3, 4, 6, 8, 12, 16, 32, 64});

TEST(Load, TheDefaultIsNeverSlowerThanAutoregressiveDecoding) {
  const std::map<int, double> wanted = {{1, 1.75}, {2, 1.35}, {3, 1.1}, {4, 1.08}};
  for (const int masks : {1, 0}) {
    for (const int clients : kClients) {
      const Load load = load_of(clients);
      const double r = ratio(masks > 0 ? "pair with masks" : "pair", clients,
                             automatic_of(load, masks), autoregressive_of(load));
      const auto at = wanted.find(clients);
      EXPECT_GE(r, at == wanted.end() ? 0.98
                   : masks > 0        ? at->second
                                      : 0.85 * at->second)
          << clients;
    }
  }
}

TEST(Load, LookupsAreNeverSlowerThanAutoregressiveDecoding) {
  for (const double copied : {0.35, 0.0}) {
    for (const int clients : kClients) {
      Load load = load_of(clients);
      load.copied = copied;
      const double r = ratio(copied > 0 ? "lookups" : "lookups, nothing copied", clients,
                             lookup_of(load), autoregressive_of(load));
      EXPECT_GE(r, copied > 0 && clients <= 4 ? 1.07 : 0.98) << clients;
    }
  }
}

TEST(Load, LookupsMakeEditsFaster) {
  const std::map<int, double> wanted = {{1, 2.3}, {2, 1.75}, {4, 1.35}, {8, 1.08}};
  for (const int clients : some<int>({1, 2, 4, 8, 16, 32})) {
    const Load load = editing_of(clients);
    const auto at = wanted.find(clients);
    EXPECT_GE(ratio("lookups of edits", clients, lookup_of(load), autoregressive_of(load)),
              at == wanted.end() ? 1 : at->second)
        << clients;
  }
}

// Most drafts are copies there, and a small model would have to read them.
TEST(Load, ASmallModelDoesNotMakeEditsSlower) {
  for (const bool avx2 : {false, true}) {
    for (const int clients : some<int>({1, 2, 4, 8})) {
      Load load = editing_of(clients);
      if (avx2) {
        load.large = kLargeTimeOfAvx2;
        load.small = kSmallTimeOfAvx2;
        load.measured *= 2;
      }
      EXPECT_GE(ratio(avx2 ? "edits, expensive rows" : "edits", clients, automatic_of(load, 1),
                      lookup_of(load)),
                0.97);
    }
  }
}

TEST(Load, BurstsLoseNothing) {
  for (const int clients : some<int>({2, 4, 8, 16})) {
    Load load = load_of(clients);
    load.bursts = true;
    load.measured = 300;
    EXPECT_GE(ratio("bursts", clients, automatic_of(load, 1), autoregressive_of(load)), 0.98);
  }
}

TEST(Load, LongPromptsLoseNothing) {
  for (const int clients : some<int>({1, 2, 4, 8, 16})) {
    Load load = load_of(clients);
    load.prompt = 1000;
    load.copied = 0.1;
    load.measured = 500 + 50 * clients;
    EXPECT_GE(ratio("prompts of 1,000", clients, automatic_of(load, 1), autoregressive_of(load)),
              clients == 1 ? 1.25 : 0.98);
  }
}

// Each token of a prompt and each draft costs much here, and answers are short.
TEST(Load, ExpensiveRowsLoseNothing) {
  for (const int clients : some<int>({1, 2, 4, 8, 16})) {
    for (const int prompt : {10, 180}) {
      Load load = load_of(clients);
      load.prompt = prompt;
      load.answer = 75;
      load.copied = 0.1;
      load.large = kLargeTimeOfAvx2;
      load.small = kSmallTimeOfAvx2;
      load.warm = 30;
      load.measured = 300 + 40 * clients;
      EXPECT_GE(ratio("expensive rows, prompt " + std::to_string(prompt), clients,
                      automatic_of(load, 1), autoregressive_of(load)),
                0.98);
    }
  }
}

// With eight clients, the first draft of a batch costs more than two tokens, and the next ones
// little.
TEST(Load, AStepInTheCostOfRowsLosesNothing) {
  for (const int clients : some<int>({1, 2, 4, 7, 8, 16})) {
    for (const double copied : {0.35, 0.1}) {
      Load load = load_of(clients);
      load.prompt = 100;
      load.answer = 110;
      load.copied = copied;
      load.large = kLargeTimeWithStep;
      load.small = kSmallTimeWithStep;
      load.warm = 30;
      load.measured = 300 + 40 * clients;
      loses_nothing("a step, " + std::to_string(copied) + " copied", load);
    }
    Load edits = editing_of(clients);
    edits.large = kLargeTimeWithStep;
    EXPECT_GE(ratio("a step, edits", clients, lookup_of(edits), autoregressive_of(edits)), 1.03);
  }
}

// With eight clients, one more row costs little, and one more row for each client costs much.
TEST(Load, RowsThatBecomeExpensiveLoseNothing) {
  for (const int clients : some<int>({1, 2, 4, 6, 8, 12, 16})) {
    for (const double copied : {0.35, 0.2, 0.1}) {
      Load load = load_of(clients);
      load.prompt = 100;
      load.answer = 110;
      load.copied = copied;
      load.large = kLargeTimeOfXeon;
      load.small = kSmallTimeOfXeon;
      load.warm = 0;
      load.measured = 100 + 20 * clients;
      loses_nothing("rows become expensive, " + std::to_string(copied), load);
    }
  }
}

// Between a client's requests, the others do not draft as if it would send no more.
TEST(Load, ShortPausesOfClientsLoseNothing) {
  for (const int clients : some<int>({1, 2, 3, 4})) {
    for (const double pause : {0.002, 0.05}) {
      Load load = load_of(clients);
      load.prompt = 110;
      load.answer = 70;
      load.copied = 0.1;
      load.script.agreement = 0.93;
      load.pause = pause;
      load.large = kLargeTimeOfAvx2;
      load.small = kSmallTimeOfAvx2;
      load.warm = 0;
      load.measured = 600;
      EXPECT_GE(ratio("pauses of " + std::to_string(pause), clients, automatic_of(load, 1),
                      autoregressive_of(load)),
                0.99);
    }
  }
}

// Batches of several rows are slow for a minute, as beside other programs, and copies do not pay.
TEST(Load, SlowBatchesAreForgotten) {
  NgramParams a;
  a.draft_tokens = 64;
  a.pace = Pace::kFastest;
  a.stats = std::make_shared<AcceptanceStats>();
  Load load = editing_of(1);
  load.method = [a](Gen g) { return ngram(g, a); };
  load.two_models = false;
  Load slow = load;
  const double one = load.large.rows.front().second;
  for (auto& [rows, seconds] : slow.large.rows) seconds = one * (0.1 + 0.9 * rows);
  slow.measured = 60;
  load.learned = serve(slow).learned;
  load.warm = 30;
  load.measured = 60;
  load.first_request = 101;
  EXPECT_GE(ratio("after slow batches", 1, serve(load), autoregressive_of(load)), 2.1);
}

// A small model that is never right, and is sure.
TEST(Load, DraftsThatFailCostAtMostTwoPercent) {
  for (const int clients : kClients) {
    Load load = load_of(clients);
    load.copied = 0;
    load.script.agreement = load.script.foresight = 0;
    load.script.masks = {{0}};
    EXPECT_GE(ratio("drafts that fail", clients, automatic_of(load, 1), autoregressive_of(load)),
              0.98);
  }
}

// Up to so many drafts while the small model is sure, with nothing to look up. Means of three
// servers, as chance decides how one begins.
TEST(Load, TheDefaultIsAsFastAsTheBestFixedSetting) {
  for (const int masks : {1, 0}) {
    for (const double agreement : some<double>({0.6, 0.82, 0.95})) {
      Load load = load_of(1);
      load.copied = 0;
      load.script.agreement = agreement;
      const auto mean = [&](const std::function<Served()>& served) {
        double sum = 0;
        for (const RequestId first : {1, 501, 1001}) {
          load.first_request = first;
          sum += served().tokens_per_second;
        }
        return sum / 3;
      };
      double best = 0;
      for (const int drafts : some<int>({1, 2, 3, 4, 6, 8, 12})) {
        SpeculativeParams a;
        a.draft_tokens = drafts;
        a.min_draft_probability = 0.5F;
        a.num_masks = load.masks = masks;
        load.method = [a](Gen g) { return speculative(g, a); };
        best = std::max(best, mean([&] { return serve(load); }));
      }
      const double automatic = mean([&] { return automatic_of(load, masks); });
      std::printf("agreement %.2f, %d masks: %.1f of the best fixed setting's %.1f tokens/s\n",
                  agreement, masks, automatic, best);
      EXPECT_GT(automatic, (0.97) * best);
    }
  }
}

TEST(Load, RequestsStayInStep) {
  EXPECT_GE(automatic_of(load_of(8), 1).requests_per_batch, 7);
  EXPECT_GE(automatic_of(load_of(4), 1).requests_per_batch, 3.5);
}

// A server that begins with the saved statistics of another drafts in its first request as that one
// would. Without them it drafts otherwise.
TEST(Load, ARestartedServerGoesOnAsTheOneBeforeItWould) {
  int different = 0;
  for (const double agreement : {0.82, 0.5}) {
    for (const int masks : {1, 0}) {
      Load load = load_of(1);
      load.script.agreement = agreement;
      const auto stats = std::make_shared<AcceptanceStats>();
      const Served old = automatic_of(load, masks, stats);
      const auto& [last, before] = *old.requests.rbegin();
      const auto restored = std::make_shared<AcceptanceStats>();
      ASSERT_TRUE(restore(numbers_of(stats->drafts), &restored->drafts));

      load.first_request = last;
      load.warm = 0;
      load.measured = 2 * before.seconds + 1;
      const Served anew = automatic_of(load, masks);
      load.learned = old.learned;
      const Served goes_on = automatic_of(load, masks, stats);
      const Served again = automatic_of(load, masks, restored);
      ASSERT_TRUE(old.right && anew.right && goes_on.right && again.right);

      const auto& [expected, got, cold] =
          std::tie(goes_on.requests.at(last), again.requests.at(last), anew.requests.at(last));
      EXPECT_DOUBLE_EQ(got.seconds, expected.seconds);
      EXPECT_EQ(got.stats.draft_tokens, expected.stats.draft_tokens);
      different += cold.stats.draft_tokens != expected.stats.draft_tokens;
    }
  }
  EXPECT_GE(different, 3);
}

}  // namespace
}  // namespace tandem::test
