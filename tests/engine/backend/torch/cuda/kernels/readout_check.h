// Readout of logits on the emulated device, bit for bit against engine/sampling.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels/readout.h"
#include "engine/sampling/processors.h"
#include "engine/sampling/race.h"
#include "engine/sampling/warp.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

// Special features of a row.
enum class RowKind : uint8_t { kPlain, kTies, kHoles, kNan, kInfinite, kNothing, kEqual };

inline std::vector<float> logits_of(RowKind kind, int n, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = normal(random);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto some = [&]() -> float& { return row[random() % row.size()]; };
  if (kind == RowKind::kTies) {
    for (float& x : row) x = std::round(x);
  } else if (kind == RowKind::kHoles) {
    for (float& x : row) x = random() % 3 == 0 ? -kInf : x;
    row[0] = 1;
  } else if (kind == RowKind::kNan) {
    some() = std::nanf("");
  } else if (kind == RowKind::kInfinite) {
    some() = kInf;
  } else if (kind == RowKind::kNothing) {
    row.assign(row.size(), -kInf);
  } else if (kind == RowKind::kEqual) {
    for (float& x : row) x = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  return row;
}

// What changes rows: see RowChanges.
struct Changed {
  std::vector<RowChange> changes;
  std::vector<ChosenToken> drafts;
  std::vector<RowAnswer> kept;
};

// The CPU's answer.
inline RowAnswer wanted_answer(std::span<float> row, const RowQuestion& q,
                               const Changed& changed = {}) {
  RowAnswer a;
  row = row.first(static_cast<size_t>(q.vocab));
  sampling::apply_changes(q, {changed.changes.data(), changed.drafts.data(), changed.kept.data()},
                          row);
  const sampling::Scan scan = sampling::scan(row);
  a.valid = scan.valid ? 1 : 0;
  if (!scan.valid) return a;
  a.max = scan.max;
  a.argmax = scan.argmax;
  sampling::Scratch scratch;
  std::vector<Token> best;
  sampling::top_n(row, q.top, scratch, best);
  for (size_t i = 0; i < best.size(); ++i) {
    a.top[i] = best[i];
    a.top_logit[i] = row[static_cast<size_t>(best[i])];
  }
  if (q.scored >= 0) a.scored = row[static_cast<size_t>(q.scored)];
  if (q.sums != 0) a.log_sum = sampling::log_normalizer(row, scan.max);
  if (q.inverse_temperature > 0) {
    const sampling::Cuts cuts{q.inverse_temperature, q.top_k, q.top_p, q.min_reach};
    const sampling::Warped warped = sampling::warp(cuts, row, scan, scratch);
    a.total = warped.total;
    a.cut = warped.cut;
    a.cut_id = warped.cut_id;
    a.drawn = sampling::race(scratch.weight, {q.key[0], q.key[1]});
    a.drawn_logit = row[static_cast<size_t>(a.drawn)];
  }
  return a;
}

inline std::string compare(const RowAnswer& got, const RowAnswer& want, const RowQuestion& q) {
  if (got.valid != want.valid) return absl::StrCat("valid: ", got.valid);
  if (want.valid == 0) return "";
  if (got.argmax != want.argmax || got.max != want.max) {
    return absl::StrCat("argmax: ", got.argmax, " where the CPU has ", want.argmax);
  }
  for (int i = 0; i < std::min(q.top, q.vocab); ++i) {
    if (got.top[i] != want.top[i] || got.top_logit[i] != want.top_logit[i]) {
      return absl::StrCat("top ", i, ": ", got.top[i], " where the CPU has ", want.top[i]);
    }
  }
  if (q.scored >= 0 && got.scored != want.scored) return "the scored token's logit";
  if (q.sums != 0 && std::log(got.log_sum) != want.log_sum) {
    return absl::StrCat("log_sum: ", std::log(got.log_sum), " where the CPU has ", want.log_sum);
  }
  if (q.inverse_temperature == 0) return "";
  if (got.cut != want.cut || got.cut_id != want.cut_id) {
    return absl::StrCat("cut: ", got.cut, " at ", got.cut_id, " where the CPU has ", want.cut,
                        " at ", want.cut_id);
  }
  if (got.total != want.total) return absl::StrCat("total: ", got.total);
  if (got.drawn != want.drawn || got.drawn_logit != want.drawn_logit) {
    return absl::StrCat("drawn: ", got.drawn, " where the CPU draws ", want.drawn);
  }
  return "";
}

// The device's answers. logits: [questions, width]; part: tokens of a part of a row; 0: not divided
inline std::vector<RowAnswer> answers_of(const std::vector<float>& logits, const Changed& changed,
                                         const std::vector<RowQuestion>& questions, int part = 0) {
  const auto n = static_cast<int64_t>(questions.size());
  const auto width = static_cast<int64_t>(logits.size()) / n;
  ReadSplit split;
  if (part > 0) split = {static_cast<int32_t>((width + part - 1) / part), part};
  const DeviceArray<float> rows("logits", logits);
  const DeviceArray<RowChange> changes("changes", changed.changes);
  const DeviceArray<ChosenToken> drafts("drafts", changed.drafts);
  const DeviceArray<RowAnswer> kept("kept", changed.kept);
  const DeviceArray<RowQuestion> asked("questions", questions);
  const DeviceArray<RowAnswer> answers("answers", n);
  const DeviceArray<PartScan> scans("scans", n * split.parts);
  const DeviceArray<RowCut> cuts("cuts", n);
  const DeviceArray<Ranking> draws("draws", n * split.parts);
  const DeviceArray<double> sums("sums", n * 2 * ReadScratch::blocks(split));
  answer_rows({}, rows, width, {changes.ptr(), drafts.ptr(), kept.ptr()}, asked, answers, n, split,
              {scans.ptr(), cuts.ptr(), draws.ptr(), sums.ptr()});
  std::vector<RowAnswer> all;
  for (int64_t r = 0; r < n; ++r) all.push_back(answers[r]);
  return all;
}

// One row of each kind, with vocabularies of up to `width` tokens.
inline std::string check_readout(int width, uint64_t seed, int part = 0) {
  std::mt19937_64 random(seed);
  constexpr RowKind kKinds[] = {RowKind::kPlain, RowKind::kTies,     RowKind::kHoles,
                                RowKind::kNan,   RowKind::kInfinite, RowKind::kNothing};
  std::vector<float> all;
  std::vector<std::vector<float>> rows;
  std::vector<RowQuestion> questions;
  for (const RowKind kind : kKinds) {
    RowQuestion q;
    q.vocab = std::max(1, width - static_cast<int>(random() % 3));
    q.scored =
        random() % 2 == 0 ? static_cast<int32_t>(random() % static_cast<uint64_t>(q.vocab)) : -1;
    q.top = static_cast<int32_t>(random() % (kAnsweredTop + 1));
    q.sums = 1;
    q.inverse_temperature = kind == RowKind::kHoles ? 2.0f : kind == RowKind::kTies ? 0.0f : 0.5f;
    q.key[0] = static_cast<uint32_t>(random());
    q.key[1] = static_cast<uint32_t>(random());
    std::vector<float>& row = rows.emplace_back(logits_of(kind, q.vocab, random));
    row.resize(static_cast<size_t>(width), 1000.0f);  // past the vocabulary: the maximum
    all.insert(all.end(), row.begin(), row.end());
    questions.push_back(q);
  }
  const std::vector<RowAnswer> answers = answers_of(all, {}, questions, part);
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::string wrong =
        compare(answers[r], wanted_answer(rows[r], questions[r]), questions[r]);
    if (!wrong.empty()) return absl::StrCat("row ", r, " of ", width, ": ", wrong);
  }
  return "";
}

// A row with processors and warpers.
struct CutRow {
  RowKind kind = RowKind::kPlain;
  int vocab = 0;
  int changes = 0;  // of logits; the best token is banned with the first one
  int drafts = 0;
  float inverse_temperature = 1;
  int top_k = 0;
  float top_p = 1;
  double min_reach = RowQuestion::kNoReach;
};

// Changes of distinct tokens: bans, biases, penalties.
inline std::vector<RowChange> random_changes(const std::vector<float>& row, int n,
                                             std::mt19937_64& random) {
  std::vector<int32_t> tokens(row.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  std::shuffle(tokens.begin(), tokens.end(), random);
  const auto best = static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
  std::swap(tokens[0], *std::ranges::find(tokens, best));
  std::vector<RowChange> changes;
  std::normal_distribution<float> normal(0, 2);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < std::min(row.size(), static_cast<size_t>(n)); ++i) {
    RowChange& c = changes.emplace_back();
    c.token = tokens[i];
    if (i % 3 != 1) c.bias = i % 9 == 0 ? -kInf : normal(random);
    c.count = static_cast<int32_t>(random() % 5) - 1;
  }
  return changes;
}

inline std::string check_cut_rows(const std::vector<CutRow>& cases, uint64_t seed, int part = 0) {
  std::mt19937_64 random(seed);
  size_t width = 0;
  for (const CutRow& c : cases) width = std::max(width, static_cast<size_t>(c.vocab));
  std::vector<float> all;
  std::vector<std::vector<float>> rows;
  std::vector<RowQuestion> questions;
  Changed changed;
  std::vector<RowChange>& changes = changed.changes;
  changes.assign(3, RowChange{.bias = 9});  // of no row
  for (int i = 0; i < 4; ++i) {             // one is not valid
    RowAnswer& a = changed.kept.emplace_back();
    a.valid = i == 2 ? 0 : 1;
    a.argmax = i;
    a.drawn = 90;
    for (int32_t& t : a.top) t = static_cast<int32_t>(random() % 40);
  }
  for (const CutRow& c : cases) {
    RowQuestion q;
    q.vocab = c.vocab;
    q.top = 2;
    q.sums = 1;
    q.inverse_temperature = c.inverse_temperature;
    q.top_k = c.top_k;
    q.top_p = c.top_p;
    q.min_reach = c.min_reach;
    q.repetition = 1.3f;
    q.frequency = 0.4f;
    q.presence = -0.3f;
    q.first_draft = static_cast<int32_t>(changed.drafts.size());
    q.drafts = c.drafts;
    for (int i = 0; i < c.drafts; ++i) {
      changed.drafts.push_back(
          {static_cast<int32_t>(random() % 4), static_cast<int32_t>(random() % 4) - 2});
    }
    q.key[0] = static_cast<uint32_t>(random());
    q.key[1] = static_cast<uint32_t>(random());
    std::vector<float>& row = rows.emplace_back(logits_of(c.kind, c.vocab, random));
    const std::vector<RowChange> own = random_changes(row, c.changes, random);
    q.first_change = static_cast<int32_t>(changes.size());
    q.changes = static_cast<int32_t>(own.size());
    changes.insert(changes.end(), own.begin(), own.end());
    row.resize(width, 1000.0f);  // past the vocabulary: the maximum
    all.insert(all.end(), row.begin(), row.end());
    questions.push_back(q);
  }
  const std::vector<RowAnswer> answers = answers_of(all, changed, questions, part);
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::string wrong =
        compare(answers[r], wanted_answer(rows[r], questions[r], changed), questions[r]);
    if (!wrong.empty()) return absl::StrCat("row ", r, " of ", width, ": ", wrong);
  }
  return "";
}

// Few rows that need each kind of change and cut.
inline std::string check_cuts(uint64_t seed, int part = 0) {
  return check_cut_rows(
      {{.kind = RowKind::kTies, .vocab = 120, .changes = 30, .top_k = 7},
       {.vocab = 119, .changes = 60, .drafts = 9, .inverse_temperature = 0.5f, .top_p = 0.9f},
       {.kind = RowKind::kTies, .vocab = 120, .inverse_temperature = 0.2f, .top_p = 0.6f},
       {.vocab = 100, .drafts = 20, .top_k = 12, .top_p = 0.7f, .min_reach = -9},
       {.kind = RowKind::kHoles, .vocab = 90, .changes = 9, .min_reach = -2.5}},
      seed, part);
}

// Rows with a token of their own, and with each kind of choice from answers, one of which is
// invalid.
inline std::string check_choices(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<RowAnswer> kept(5);
  for (RowAnswer& a : kept) {
    a.valid = 1;
    a.argmax = static_cast<int32_t>(random() % 1000);
    a.drawn = static_cast<int32_t>(random() % 1000);
    for (int32_t& t : a.top) t = static_cast<int32_t>(random() % 1000);
  }
  kept[3].valid = 0;
  std::vector<ChosenToken> chosen;
  std::vector<int32_t> token, want;
  for (int r = 0; r < kChooseThreads + 9; ++r) {
    const auto answer = static_cast<int32_t>(random() % 6) - 1;
    const auto which = static_cast<int32_t>(random() % 5) - 2;
    chosen.push_back({answer, which});
    token.push_back(2000 + r);
    if (answer < 0) {
      want.push_back(token.back());
      continue;
    }
    const RowAnswer& a = kept[static_cast<size_t>(answer)];
    want.push_back(a.valid == 0                    ? -1
                   : which == ChosenToken::kArgmax ? a.argmax
                   : which == ChosenToken::kDrawn  ? a.drawn
                                                   : a.top[which]);
  }
  const auto n = static_cast<int64_t>(want.size());
  const DeviceArray<int32_t> to("chosen", n), from("token", token);
  const DeviceArray<ChosenToken> asked("choices", chosen);
  const DeviceArray<RowAnswer> answers("answers", kept);
  choose({}, to, from, asked, n, answers);
  for (int64_t r = 0; r < n; ++r) {
    if (to[r] != want[static_cast<size_t>(r)]) {
      return absl::StrCat("row ", r, " gets ", to[r], ", not ", want[static_cast<size_t>(r)]);
    }
  }
  return "";
}

}  // namespace tandem::cuda
