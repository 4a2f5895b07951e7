// Checks of answers about rows of logits, bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#include "engine/backend/torch/cuda/kernels/readout.h"

namespace tandem::cuda::program {

// Each operation rounded: kept apart from additions, which compilers would fuse.
inline float times(float a, float b) { return a * b; }
inline float plus(float a, float b) { return a + b; }

// The contract of readout.h, written again for the host: exp of x <= 0.
inline float exact_exp(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = std::fma(clamped, 1.44269504088896341f, 12582912.0f);
  const float n = plus(shifted, -12582912.0f);
  float r = std::fma(n, -0.693359375f, clamped);
  r = std::fma(n, 2.12194440e-4f, r);
  float y = 1.9875691500e-4f;
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    y = std::fma(y, r, c);
  }
  y = plus(std::fma(times(y, r), r, r), 1.0f);
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u) << 23;
  return x < -87.0f ? 0.0f : times(y, std::bit_cast<float>(power));
}

// engine/sampling/race.h: the exponential variable of a token.
inline float exact_exponential(const uint32_t (&key)[2], uint32_t v) {
  uint32_t x = v + key[0];
  x = (x ^ x >> 17) * 0xed5ad4bbu;
  x = ((x ^ x >> 11) + key[1]) * 0xac4c1b51u;
  x = (x ^ x >> 15) * 0x31848babu;
  const uint32_t word = x ^ x >> 14;
  const auto unit = [](uint32_t w) { return times(plus(static_cast<float>(w), 0.5f), 0x1p-32f); };
  float f = 0, e = 0;
  if (word < 0x40000000u) {
    f = -unit(word);
  } else {
    const uint32_t above = std::bit_cast<uint32_t>(unit(~word)) - 0x3f3504f3u;
    e = static_cast<float>(static_cast<int32_t>(above) >> 23);
    f = plus(std::bit_cast<float>((above & 0x007fffffu) + 0x3f3504f3u), -1.0f);
  }
  const float z = times(f, f);
  float y = 7.0376836292e-2f;
  for (const float c : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                        -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f}) {
    y = plus(times(y, f), c);
  }
  y = times(times(y, f), z);
  y = plus(y, times(e, -2.12194440e-4f));
  y = plus(y, -times(0.5f, z));
  return -plus(plus(f, y), times(e, 0.693359375f));
}

// Sum of weights in sampling's order: sixteen lanes of each 1,024.
inline double exact_sum(const std::vector<float>& weights) {
  double total = 0;
  for (size_t block = 0; block < weights.size(); block += kSumBlock) {
    double lanes[kSumLanes] = {}, sum = 0;
    const size_t end = std::min(weights.size(), block + kSumBlock);
    for (size_t i = block; i < end; ++i) {
      lanes[(i - block) % kSumLanes] += static_cast<double>(weights[i]);
    }
    for (const double lane : lanes) sum += lane;
    total += sum;
  }
  return total;
}

// What changes rows: see RowChanges.
struct Changed {
  std::vector<RowChange> changes;
  std::vector<ChosenToken> drafts;
  std::vector<RowAnswer> kept;
};

// engine/sampling/processors.h
inline void exact_changes(float* x, const RowQuestion& q, const Changed& all) {
  std::vector<float> bias(static_cast<size_t>(q.vocab), -0.0f);
  std::vector<int32_t> count(static_cast<size_t>(q.vocab), -1);
  for (int32_t i = q.first_change; i < q.first_change + q.changes; ++i) {
    const RowChange& c = all.changes[static_cast<size_t>(i)];
    bias[static_cast<size_t>(c.token)] = c.bias;
    count[static_cast<size_t>(c.token)] = c.count;
  }
  for (int32_t i = q.first_draft; i < q.first_draft + q.drafts; ++i) {
    const ChosenToken& c = all.drafts[static_cast<size_t>(i)];
    const int32_t token = c.of(all.kept[static_cast<size_t>(c.answer)]);
    if (token < 0 || token >= q.vocab) continue;
    int32_t& n = count[static_cast<size_t>(token)];
    n = std::max(n, 0) + 1;
  }
  for (int32_t v = 0; v < q.vocab; ++v) {
    float y = plus(x[v], bias[static_cast<size_t>(v)]);
    const int32_t n = count[static_cast<size_t>(v)];
    if (n >= 0) y = y < 0 ? times(y, q.repetition) : y / q.repetition;
    if (n > 0) y = plus(y, -std::fma(q.frequency, static_cast<float>(n), q.presence));
    x[v] = y;
  }
}

// The last token that truncation keeps, or a bound of logits and any token. order: by rank
inline void exact_cut(RowAnswer& a, const float* x, const std::vector<float>& w,
                      const std::vector<int32_t>& order, const RowQuestion& q) {
  if (q.top_k > 0 && q.top_k < q.vocab) a.cut = x[order[static_cast<size_t>(q.top_k) - 1]];
  if (q.top_p < 1) {
    const auto units = [&](int32_t v) {
      return x[v] < a.cut ? 0 : static_cast<uint64_t>(times(w[static_cast<size_t>(v)], 0x1p35f));
    };
    uint64_t all = 0, before = 0;
    for (const int32_t v : order) all += units(v);
    const double share = static_cast<double>(q.top_p) * static_cast<double>(all);
    size_t kept = 0;
    for (; kept == 0 || static_cast<double>(before) < share; ++kept) before += units(order[kept]);
    a.cut_id = order[kept - 1];
    a.cut = x[a.cut_id];
  }
  if (q.min_reach > 0) return;
  const double least = static_cast<double>(a.max) + q.min_reach;
  if (!(least > static_cast<double>(a.cut))) return;
  a.cut = static_cast<float>(least);
  if (static_cast<double>(a.cut) < least) {
    a.cut = std::nextafter(a.cut, std::numeric_limits<float>::infinity());
  }
  a.cut_id = kNoToken;
}

inline RowAnswer exact_answer(const float* x, const RowQuestion& q) {
  RowAnswer a;
  std::vector<int32_t> order;
  a.valid = 1;
  for (int32_t v = 0; v < q.vocab; ++v) {
    if (!(x[v] < std::numeric_limits<float>::infinity())) a.valid = 0;
    order.push_back(v);
  }
  if (a.valid == 0) return a;
  const auto first = [&](int32_t v, int32_t w) { return x[v] != x[w] ? x[v] > x[w] : v < w; };
  std::partial_sort(order.begin(), order.begin() + std::min(kAnsweredTop, q.vocab), order.end(),
                    first);
  a.argmax = order[0];
  a.max = x[a.argmax];
  for (int i = 0; i < q.top; ++i) a.top[i] = order[static_cast<size_t>(i)];
  for (int i = 0; i < q.top; ++i) a.top_logit[i] = x[a.top[i]];
  if (q.scored >= 0) a.scored = x[q.scored];
  const auto weights = [&](float scale) {
    std::vector<float> w;
    for (int32_t v = 0; v < q.vocab; ++v) w.push_back(exact_exp(times(plus(x[v], -a.max), scale)));
    return w;
  };
  if (q.sums != 0) a.log_sum = exact_sum(weights(1));
  if (q.inverse_temperature == 0) return a;
  std::vector<float> w = weights(q.inverse_temperature);
  if (q.truncates()) {
    std::sort(order.begin(), order.end(), first);
    exact_cut(a, x, w, order, q);
    for (int32_t v = 0; v < q.vocab; ++v) {
      if (x[v] < a.cut || (x[v] == a.cut && v > a.cut_id)) w[static_cast<size_t>(v)] = 0;
    }
  }
  a.total = exact_sum(w);
  float best = 0;
  for (int32_t v = 0; v < q.vocab; ++v) {
    const float score = times(w[static_cast<size_t>(v)], 0x1p64f) /
                        exact_exponential(q.key, static_cast<uint32_t>(v));
    if (score > best) {
      best = score;
      a.drawn = v;
      a.drawn_logit = x[v];
    }
  }
  return a;
}

inline bool same_answer(const RowAnswer& a, const RowAnswer& b, const RowQuestion& q) {
  if (a.valid != b.valid) return false;
  if (a.valid == 0) return true;
  bool same = a.max == b.max && a.argmax == b.argmax;
  for (int i = 0; i < q.top; ++i) {
    same = same && a.top[i] == b.top[i] && a.top_logit[i] == b.top_logit[i];
  }
  if (q.scored >= 0) same = same && a.scored == b.scored;
  if (q.sums != 0) same = same && a.log_sum == b.log_sum;
  if (q.inverse_temperature == 0) return same;
  return same && a.total == b.total && a.drawn == b.drawn && a.drawn_logit == b.drawn_logit &&
         a.cut == b.cut && a.cut_id == b.cut_id;
}

// Logits, every second row with many ties. One row of eight has a NaN, one an infinity.
inline std::vector<float> random_logits(int64_t rows, int64_t vocab, uint64_t seed) {
  std::vector<float> x = numbers<float>(rows * vocab, seed, 12);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = r * vocab; r % 2 == 0 && i < (r + 1) * vocab; ++i) {
      x[static_cast<size_t>(i)] += 0.09f * number_at(seed + 9, i);
    }
    const auto at = static_cast<size_t>(r * vocab + bits_at(seed, -r - 1) % vocab);
    if (r % 8 == 6) x[at] = std::nanf("");
    if (r % 8 == 7) x[at] = std::numeric_limits<float>::infinity();
  }
  return x;
}

inline std::vector<RowQuestion> questions(int64_t rows, int64_t vocab, uint64_t seed) {
  std::vector<RowQuestion> all;
  for (int64_t r = 0; r < rows; ++r) {
    RowQuestion q;
    q.vocab = static_cast<int32_t>(vocab - r % 3);
    if (r % 2 == 1) q.scored = static_cast<int32_t>(bits_at(seed, r) % q.vocab);
    q.top = r % 8 == 2 ? kAnsweredTop : static_cast<int32_t>(r % 4);
    q.sums = r % 3 == 1 ? 1 : 0;
    q.inverse_temperature = r % 4 == 0 ? 0.0f : 0.5f * static_cast<float>(r % 4);
    q.key[0] = bits_at(seed + 1, r);
    q.key[1] = bits_at(seed + 2, r);
    if (r % 16 == 1 || r % 16 == 3) q.top_k = static_cast<int32_t>(5 * r);
    if (r % 16 == 2 || r % 16 == 3) q.top_p = 0.8f;
    if (r % 16 == 5) q.min_reach = -0.75;
    all.push_back(q);
  }
  return all;
}

// Changes of rows that ask for nothing else yet: of every other token, up to some number of them.
// Every seventh one is a ban.
inline Changed changes_of(std::vector<RowQuestion>& asked, uint64_t seed) {
  Changed changed;
  std::vector<RowChange>& all = changed.changes;
  for (int32_t i = 0; i < 4; ++i) {  // the last one is not valid
    RowAnswer& a = changed.kept.emplace_back();
    a.valid = i < 3 ? 1 : 0;
    a.argmax = 3 * i;
    a.drawn = 5;
    for (int32_t& t : a.top) t = 4;
  }
  for (size_t r = 0; r < asked.size(); ++r) {
    RowQuestion& q = asked[r];
    q.first_change = static_cast<int32_t>(all.size());
    q.first_draft = static_cast<int32_t>(changed.drafts.size());
    q.repetition = 1.3f;
    q.frequency = 0.25f;
    q.presence = -0.1f;
    if (r % 3 == 2) continue;
    q.drafts = static_cast<int32_t>(r % 7);
    for (int32_t i = 0; i < q.drafts; ++i) {
      changed.drafts.push_back({static_cast<int32_t>(bits_at(seed + 1, i) % 4), i % 4 - 2});
    }
    q.changes = std::min(q.vocab / 2, static_cast<int32_t>(40 * r));
    for (int32_t i = 0; i < q.changes; ++i) {
      RowChange c;
      c.token = 2 * i;
      c.bias = i % 7 == 3 ? -std::numeric_limits<float>::infinity()
                          : number_at(seed, static_cast<int64_t>(all.size()));
      c.count = i % 5 - 1;
      all.push_back(c);
    }
  }
  return changed;
}

// Memory of divided rows.
struct ReadBuffers {
  ReadBuffers(int64_t rows, const ReadSplit& split)
      : scans(rows * split.parts),
        cuts(rows),
        draws(rows * split.parts),
        sums(rows * 2 * ReadScratch::blocks(split)) {}
  ReadScratch scratch() const { return {scans.ptr(), cuts.ptr(), draws.ptr(), sums.ptr()}; }

  Buffer<PartScan> scans;
  Buffer<RowCut> cuts;
  Buffer<Ranking> draws;
  Buffer<double> sums;
};

inline void check_readout(Report& report, const std::string& name, int64_t vocab, uint64_t seed) {
  constexpr int64_t kRows = 16;
  const std::vector<float> unchanged = random_logits(kRows, vocab, seed);
  std::vector<float> logits = unchanged;
  std::vector<RowQuestion> asked = questions(kRows, vocab, seed);
  const Changed changes = changes_of(asked, seed + 3);
  const Buffer<float> x(logits);
  const Buffer<RowChange> device_changes(changes.changes);
  const Buffer<ChosenToken> device_drafts(changes.drafts);
  const Buffer<RowAnswer> device_kept(changes.kept);
  const ReadChanges changed = {device_changes.ptr(), device_drafts.ptr(), device_kept.ptr()};
  const Buffer<RowQuestion> device_asked(asked);
  const Buffer<RowAnswer> answers(kRows);
  answer_rows(stream, x.ptr(), vocab, changed, device_asked.ptr(), answers.ptr(), kRows);
  finish("answer_rows");
  const std::vector<RowAnswer> got = answers.read();
  std::vector<int> same(kRows);
  on_all_cores(kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto i = static_cast<size_t>(r);
      exact_changes(logits.data() + r * vocab, asked[i], changes);
      same[i] = same_answer(got[i], exact_answer(logits.data() + r * vocab, asked[i]), asked[i]);
    }
  });
  for (const int32_t part : {kSumBlock, 16 * kSumBlock}) {  // divided; some parts are empty
    const ReadSplit split = {static_cast<int32_t>((vocab + part - 1) / part), part};
    const ReadBuffers buffers(kRows, split);
    const Buffer<float> again(unchanged);
    answer_rows(stream, again.ptr(), vocab, changed, device_asked.ptr(), answers.ptr(), kRows,
                split, buffers.scratch());
    finish("answer_rows of parts");
    const std::vector<RowAnswer> parts = answers.read();
    bool all = true;
    for (size_t r = 0; r < kRows; ++r) all = all && same_answer(parts[r], got[r], asked[r]);
    report.same(name + ".parts_" + std::to_string(part), all);
  }
  for (int64_t r = 0; r < kRows; ++r) {
    if (same[static_cast<size_t>(r)] == 0)
      report.fail(name + ".row_" + std::to_string(r), "differs");
  }
  report.same(name + ".bits", std::count(same.begin(), same.end(), 0) == 0);

  std::vector<ChosenToken> chosen;
  std::vector<int32_t> token, want;
  for (int32_t r = 0; r < 300; ++r) {
    const auto answer = static_cast<int32_t>(bits_at(seed + 5, r) % (kRows + 1)) - 1;
    int32_t which = static_cast<int32_t>(bits_at(seed + 6, r) % 3) - 2;
    token.push_back(1000000 + r);
    if (answer < 0) {
      want.push_back(token.back());
    } else {
      const RowAnswer& a = got[static_cast<size_t>(answer)];
      if (which == 0 && asked[static_cast<size_t>(answer)].top == 0) which = ChosenToken::kArgmax;
      want.push_back(a.valid == 0                    ? -1
                     : which == ChosenToken::kArgmax ? a.argmax
                     : which == ChosenToken::kDrawn  ? a.drawn
                                                     : a.top[which]);
    }
    chosen.push_back({answer, which});
  }
  const Buffer<ChosenToken> device_chosen(chosen);
  const Buffer<int32_t> from(token), to(static_cast<int64_t>(token.size()));
  choose(stream, to.ptr(), from.ptr(), device_chosen.ptr(), from.size(), answers.ptr());
  finish("choose");
  report.same(name + ".choose", to.read() == want);
}

}  // namespace tandem::cuda::program
