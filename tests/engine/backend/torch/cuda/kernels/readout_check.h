// Readout of logits on the emulated device, bit for bit against engine/sampling.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels/readout.h"
#include "engine/sampling/race.h"
#include "engine/sampling/warp.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

// Special features of a row.
enum class RowKind : uint8_t { kPlain, kTies, kHoles, kNan, kInfinite, kNothing };

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
  }
  return row;
}

// The CPU's answer.
inline RowAnswer wanted_answer(std::span<const float> row, const RowQuestion& q) {
  RowAnswer a;
  row = row.first(static_cast<size_t>(q.vocab));
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
    Warp warp;
    warp.temperature = 1 / q.inverse_temperature;
    a.total = sampling::warp(warp, row, scan, scratch).total;
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
  if (got.total != want.total) return absl::StrCat("total: ", got.total);
  if (got.drawn != want.drawn || got.drawn_logit != want.drawn_logit) {
    return absl::StrCat("drawn: ", got.drawn, " where the CPU draws ", want.drawn);
  }
  return "";
}

// One row of each kind, with vocabularies of up to `width` tokens.
inline std::string check_readout(int width, uint64_t seed) {
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
  const auto n = static_cast<int64_t>(rows.size());
  const DeviceArray<float> logits("logits", all);
  const DeviceArray<RowQuestion> asked("questions", questions);
  const DeviceArray<RowAnswer> answers("answers", n);
  answer_rows({}, logits, width, asked, answers, n);
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::string wrong = compare(answers[static_cast<int64_t>(r)],
                                      wanted_answer(rows[r], questions[r]), questions[r]);
    if (!wrong.empty()) return absl::StrCat("row ", r, " of ", width, ": ", wrong);
  }
  return "";
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
