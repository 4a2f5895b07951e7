// Readout of rows of logits: changes of single logits, maximum, softmax sums, top tokens, sampling
// with top_k, top_p and min_p. Bit-identical to the CPU (engine/sampling/lanes.h, warp.h, race.h):
// the same order of summation or exact sums, and each operation rounded separately or fused as
// there. A row has one thread block. Few long rows are divided: each part has one, and the results
// are merged.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/sampling/row_answer.h"

namespace tandem::cuda {

inline constexpr int kReadThreads = 1024;
inline constexpr int kReadWarps = kReadThreads / kWarp;
inline constexpr int kReadWords = 4;  // of 16 bytes, that a thread loads at once
inline constexpr int kChooseThreads = 256;
// sampling::kLanes and kBlock: the partition of a row's sums.
inline constexpr int kSumLanes = 16;
inline constexpr int kSumBlock = 1024;
inline constexpr int kSumGroups = kReadThreads / kSumLanes;
inline constexpr int kGathered = 2048;  // tokens near an edge of truncation, in shared memory
inline constexpr int kMostReadVocab = 1 << 18;
inline constexpr int kNoToken = 0x7fffffff;

// sampling::exp_nonpositive, with the fused operations of the CPU's compilers.
inline __device__ float exp_nonpositive(float x) {
  constexpr float kRound = 12582912.0f;
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = __fmaf_rn(clamped, 1.44269504088896341f, kRound);
  const float n = __fadd_rn(shifted, -kRound);
  float r = __fmaf_rn(n, -0.693359375f, clamped);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float y = 1.9875691500e-4f;
  y = __fmaf_rn(y, r, 1.3981999507e-3f);
  y = __fmaf_rn(y, r, 8.3334519073e-3f);
  y = __fmaf_rn(y, r, 4.1665795894e-2f);
  y = __fmaf_rn(y, r, 1.6666665459e-1f);
  y = __fmaf_rn(y, r, 5.0000001201e-1f);
  y = __fadd_rn(__fmaf_rn(__fmul_rn(y, r), r, r), 1.0f);
  const uint32_t power = (__float_as_uint(shifted) - 0x4B400000u + 127u) << 23;
  return x < -87.0f ? 0.0f : __fmul_rn(y, __uint_as_float(power));
}

inline __device__ float race_unit(uint32_t word) {
  return __fmul_rn(__fadd_rn(static_cast<float>(word), 0.5f), 2.3283064365386963e-10f);  // 2^-32
}

// sampling::race_word.
inline __device__ uint32_t race_word(uint32_t first, uint32_t second, uint32_t v) {
  uint32_t x = v + first;
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += second;
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  x ^= x >> 14;
  return x;
}

// sampling::exponential, without fused operations.
inline __device__ float race_exponential(uint32_t word) {
  float f;
  float e = 0;
  if (word < 0x40000000u) {
    f = -race_unit(word);
  } else {
    const uint32_t rest = __float_as_uint(race_unit(~word));
    const uint32_t above = rest - 0x3f3504f3u;
    e = static_cast<float>(static_cast<int32_t>(above) >> 23);
    f = __fadd_rn(__uint_as_float((above & 0x007fffffu) + 0x3f3504f3u), -1.0f);
  }
  const float z = __fmul_rn(f, f);
  float y = 7.0376836292e-2f;
  y = __fadd_rn(__fmul_rn(y, f), -1.1514610310e-1f);
  y = __fadd_rn(__fmul_rn(y, f), 1.1676998740e-1f);
  y = __fadd_rn(__fmul_rn(y, f), -1.2420140846e-1f);
  y = __fadd_rn(__fmul_rn(y, f), 1.4249322787e-1f);
  y = __fadd_rn(__fmul_rn(y, f), -1.6668057665e-1f);
  y = __fadd_rn(__fmul_rn(y, f), 2.0000714765e-1f);
  y = __fadd_rn(__fmul_rn(y, f), -2.4999993993e-1f);
  y = __fadd_rn(__fmul_rn(y, f), 3.3333331174e-1f);
  y = __fmul_rn(y, f);
  y = __fmul_rn(y, z);
  y = __fadd_rn(y, __fmul_rn(e, -2.12194440e-4f));
  y = __fadd_rn(y, -__fmul_rn(0.5f, z));
  return -__fadd_rn(__fadd_rn(f, y), __fmul_rn(e, 0.693359375f));
}

// A token with its score. Higher scores rank first; ties go to the lowest id.
struct Ranking {
  float number;
  int32_t token;

  __device__ bool before(const Ranking& other) const {
    const bool first = mutated(Mutant::kReadTies) ? token > other.token : token < other.token;
    return number > other.number || (number == other.number && first);
  }
};

// A number with the order of logits: larger logits have larger keys, equal ones the same.
inline __device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // -0 becomes +0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
inline __device__ float number_of(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// sampling::Warped without a ceiling: the tokens that truncation keeps.
struct Cut {
  float number = -INFINITY;
  int32_t id = kNoToken;

  __device__ bool keeps(float x, int32_t token) const {
    return x > number || (x == number && token <= id);
  }
};

// How rows are divided among thread blocks.
struct ReadSplit {
  int32_t parts = 1;   // of a row; at most kReadThreads / kAnsweredTop
  int32_t tokens = 0;  // of a part, a multiple of kSumBlock; unset: rows are not divided
};

// The division of `rows` rows of `vocab` logits. Answers do not depend on it.
inline ReadSplit read_split(int64_t rows, int64_t vocab) {
  constexpr int kTokens = kReadWords * 4 * kReadThreads;  // in flight at once
  constexpr int kFewest = 4;                              // parts that pay for three more launches
  constexpr int kMostBlocks = 128;                        // about one per multiprocessor
  const auto parts = static_cast<int32_t>((vocab + kTokens - 1) / kTokens);
  if (parts < kFewest || rows * parts > kMostBlocks) return {};
  return {parts, kTokens};
}

// Of a part: the best token, whose number is infinite if a logit is NaN or +Inf, and the top ones.
struct PartScan {
  Ranking best;
  int32_t top[kAnsweredTop];
  float top_logit[kAnsweredTop];
};

struct RowCut {
  Ranking best;
  int32_t valid;  // as RowAnswer::valid
  Cut cut;
};

// The token that a choice names in the cached answers; -1 if the answer is not valid.
template <class Answer>
__device__ int32_t chosen_token(Ptr<const Answer> kept, const ChosenToken& c) {
  // Accessed as words: a variable index into registers would place the answer in local memory.
  const Ptr<const int32_t> words =
      words_of<int32_t>(kept) + c.answer * static_cast<int64_t>(sizeof(Answer) / 4);
  const int which = mutated(Mutant::kChooseBest) ? ChosenToken::kArgmax : c.which;
  const size_t at = which == ChosenToken::kArgmax ? offsetof(Answer, argmax)
                    : which == ChosenToken::kDrawn
                        ? offsetof(Answer, drawn)
                        : offsetof(Answer, top) + sizeof(int32_t) * which;
  const int32_t token = words[static_cast<int64_t>(at / 4)];
  return words[offsetof(Answer, valid) / 4] == 0 && !mutated(Mutant::kChooseInvalid) ? -1 : token;
}

// RowChanges on the device.
struct ReadChanges {
  Ptr<const RowChange> changes;
  Ptr<const ChosenToken> drafts;
  Ptr<const RowAnswer> kept;
};

// What divided rows leave between launches.
struct ReadScratch {
  Ptr<PartScan> scans;  // [rows, parts]
  Ptr<RowCut> cuts;     // [rows]
  Ptr<Ranking> draws;   // [rows, parts]: the score of a race
  Ptr<double> sums;     // [rows, 2, blocks()]

  __host__ __device__ static int64_t blocks(const ReadSplit& split) {
    return int64_t{split.parts} * (split.tokens / kSumBlock);
  }
};

class RowBlock {
 public:
  struct Shared {
    SharedArray<float, kReadWarps> numbers;
    SharedArray<int32_t, kReadWarps> tokens;
    SharedArray<uint64_t, kReadWarps> sums;
    SharedArray<int32_t, kReadWarps> counts;
    SharedArray<int32_t, kAnsweredTop> top;  // of thread 0
    SharedArray<float, kAnsweredTop> top_logit;
    SharedArray<double, kReadThreads> lanes;
    SharedArray<double, kMostReadVocab / kSumBlock> blocks;
    SharedArray<int32_t, kMostRowDrafts> drafts, counted;
    SharedArray<int32_t, kReadThreads> found;  // by thread
    SharedArray<uint32_t, kGathered> keys;     // of gathered tokens
    SharedArray<int32_t, kGathered> ids;
  };

  __device__ RowBlock(Ptr<const float> logits, const RowQuestion& question, Shared& shared)
      : x_(logits),
        q_(question),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        first_(0),
        end_(vocab()) {}
  // Of a part of the row.
  __device__ RowBlock(Ptr<const float> logits, const RowQuestion& question, Shared& shared,
                      const ReadSplit& split, int part)
      : x_(logits),
        q_(question),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        first_(part * split.tokens),
        end_(min(vocab(), (part + 1) * split.tokens)) {}

  // Makes the part's changes to the row, which is `logits`. Each token has one; drafts add to it.
  __device__ void change(Ptr<float> logits, const ReadChanges& all) {
    if (q_.changes + q_.drafts == 0) return;  // uniform over the thread block
    if (thread_ < q_.drafts) {
      s_.drafts[thread_] = chosen_token(all.kept, all.drafts[q_.first_draft + thread_]);
      s_.counted[thread_] = 0;
    }
    if (!mutated(Mutant::kReadDraftsEarly)) __syncthreads();
    const int first = mutated(Mutant::kReadFirstChanges) ? 0 : q_.first_change;
    for (int i = thread_; i < q_.changes; i += kReadThreads) {
      const RowChange c = all.changes[first + i];
      const bool other = c.token < first_ || c.token >= end_;
      if (other && !mutated(Mutant::kReadChangesOfAll)) continue;
      int32_t more = 0;
      for (int d = 0; d < q_.drafts; ++d) {
        if (s_.drafts[d] != c.token) continue;
        s_.counted[d] = 1;
        ++more;
      }
      const float x = __fadd_rn(logits[c.token], c.bias);
      const int32_t count = more > 0 ? max(c.count, 0) + more : c.count;
      logits[c.token] = count < 0 ? x : penalized(x, count);
    }
    if (q_.drafts > 0) {
      __syncthreads();
      // Drafts without a change, each token by the thread of the first.
      if (thread_ < q_.drafts && s_.counted[thread_] == 0) {
        const int32_t token = s_.drafts[thread_];
        int32_t count = 0;
        bool repeats = false;
        for (int d = 0; d < q_.drafts; ++d) {
          if (s_.drafts[d] != token) continue;
          repeats = repeats || d < thread_;
          ++count;
        }
        const bool here = token >= max(first_, 0) && token < min(end_, q_.vocab);
        if (here && !repeats) {
          logits[token] = penalized(logits[token], mutated(Mutant::kReadDraftsOnce) ? 1 : count);
        }
      }
    }
    if (!mutated(Mutant::kReadUnchanged)) __syncthreads();
  }

  // Results are valid in thread 0.
  __device__ RowAnswer run() {
    RowAnswer a;
    const Ranking first = scan();
    begin(a, first);
    if (a.valid == 0) return a;  // uniform over the thread block
    rank(first, [&](const Ranking& last) { return best(last); });
    if (q_.scored >= 0) a.scored = x_[q_.scored];
    if (q_.sums != 0) a.log_sum = sum(a.max, 1.0f, {});
    if (q_.inverse_temperature > 0) {
      const Cut cut = truncation(a.max);
      a.cut = cut.number;
      a.cut_id = cut.id;
      a.total = sum(a.max, q_.inverse_temperature, cut);
      const Ranking drawn = race(a.max, cut);
      a.drawn = drawn.token == kNoToken ? -1 : drawn.token;
      if (a.drawn >= 0) a.drawn_logit = x_[a.drawn];
    }
    put_top(a);
    return a;
  }

  // The steps for divided rows, each after the one before has ended for all parts.
  __device__ PartScan scan_part() {
    PartScan part;
    const Ranking first = scan();
    part.best = first;
    rank(first, [&](const Ranking& last) { return best(last); });
    put_top(part);
    return part;
  }
  // scans: of the row's parts
  __device__ RowCut cut_row(Ptr<const PartScan> scans, int parts) {
    Ranking mine = {-INFINITY, kNoToken};
    if (thread_ < parts) mine = scans[thread_].best;
    const Ranking first = first_of(mine);
    RowAnswer a;
    begin(a, first);
    RowCut row = {first, a.valid, {}};
    const bool truncates = q_.top_k > 0 || q_.top_p < 1 || q_.min_reach <= 0;
    if (row.valid != 0 && q_.inverse_temperature > 0 && truncates) {
      row.cut = truncation(first.number);
    }
    return row;
  }
  // sums: by the row's blocks of kSumBlock, of the two kinds
  __device__ Ranking weigh_part(const RowCut& row, Ptr<double> log_sums, Ptr<double> sums) {
    const float max = row.best.number;
    if (q_.sums != 0) {
      block_sums(max, 1.0f, {}, [&](int block, double sum) { log_sums[block] = sum; });
    }
    if (q_.inverse_temperature == 0) return {0, kNoToken};
    block_sums(max, q_.inverse_temperature, row.cut,
               [&](int block, double sum) { sums[block] = sum; });
    return race(max, row.cut);
  }
  // draws: of the row's parts
  __device__ RowAnswer merge(Ptr<const PartScan> scans, const RowCut& row, Ptr<const Ranking> draws,
                             int parts, Ptr<const double> log_sums, Ptr<const double> sums) {
    RowAnswer a;
    begin(a, row.best);
    if (a.valid == 0) return a;
    Ranking mine = {-INFINITY, kNoToken};
    const int part = thread_ / kAnsweredTop;
    const int place = thread_ % kAnsweredTop;
    if (part < parts && place < q_.top) {
      mine = {scans[part].top_logit[place], scans[part].top[place]};
    }
    rank(row.best, [&](const Ranking& last) {
      return first_of(last.before(mine) ? mine : Ranking{-INFINITY, kNoToken});
    });
    if (q_.scored >= 0) a.scored = x_[q_.scored];
    if (q_.sums != 0) a.log_sum = total_of(log_sums);
    if (q_.inverse_temperature > 0) {
      a.cut = row.cut.number;
      a.cut_id = row.cut.id;
      a.total = total_of(sums);
      Ranking drawn = {0, kNoToken};
      if (thread_ < parts) drawn = draws[thread_];
      drawn = first_of(drawn);
      a.drawn = drawn.token == kNoToken ? -1 : drawn.token;
      if (a.drawn >= 0) a.drawn_logit = x_[a.drawn];
    }
    put_top(a);
    return a;
  }

 private:
  // Processors' penalties for a token that the answer has `count` times.
  __device__ float penalized(float x, int32_t count) const {
    const bool more = x < 0 && !mutated(Mutant::kReadRepetition);
    x = more ? __fmul_rn(x, q_.repetition) : __fdiv_rn(x, q_.repetition);
    if (count <= 0) return x;
    return __fadd_rn(x, -__fmaf_rn(q_.frequency, static_cast<float>(count), q_.presence));
  }

  // first: the best token of the row
  __device__ void begin(RowAnswer& a, const Ranking& first) const {
    a.max = first.number;
    a.argmax = first.token;
    const bool below_infinity = first.number < INFINITY || mutated(Mutant::kReadNan);
    a.valid = below_infinity && first.number > -INFINITY ? 1 : 0;
  }
  // Finds the top tokens. next(last): the token ranked after `last`
  template <class Next>
  __device__ void rank(Ranking last, const Next& next) {
#pragma unroll 1
    for (int i = 0; i < min(q_.top, kAnsweredTop); ++i) {
      if (i > 0) last = next(last);
      if (thread_ != 0) continue;
      s_.top[i] = last.token;
      s_.top_logit[i] = last.number;
    }
  }
  template <class To>
  __device__ void put_top(To& to) const {
#pragma unroll  // a variable index would place the answer in local memory
    for (int i = 0; i < kAnsweredTop; ++i) {
      if (i >= q_.top || thread_ != 0) continue;
      to.top[i] = s_.top[i];
      to.top_logit[i] = s_.top_logit[i];
    }
  }

  // First in rank over all threads; all threads get it.
  __device__ Ranking first_of(Ranking mine) {
    mine = first_of_warp(mine);
    if (thread_ % kWarp == 0) {
      s_.numbers[thread_ / kWarp] = mine.number;
      s_.tokens[thread_ / kWarp] = mine.token;
    }
    if (!mutated(Mutant::kReadBestEarly)) __syncthreads();
    static_assert(kReadWarps == kWarp);
    const Ranking all = first_of_warp({s_.numbers[thread_ % kWarp], s_.tokens[thread_ % kWarp]});
    if (!mutated(Mutant::kReadBestOverlap)) __syncthreads();
    return all;
  }
  static __device__ Ranking first_of_warp(Ranking mine) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const Ranking other = {__shfl_xor_sync(0xffffffffu, mine.number, step),
                             __shfl_xor_sync(0xffffffffu, mine.token, step)};
      if (other.before(mine)) mine = other;
    }
    return mine;
  }

  // Tokens and the sum of their measures.
  struct Amount {
    uint64_t sum = 0;
    int32_t count = 0;
  };

  // Sums over all threads; all threads get them.
  __device__ Amount all_of(Amount mine) {
    mine = all_of_warp(mine);
    if (thread_ % kWarp == 0) {
      s_.sums[thread_ / kWarp] = mine.sum;
      s_.counts[thread_ / kWarp] = mine.count;
    }
    __syncthreads();
    const Amount all = all_of_warp({s_.sums[thread_ % kWarp], s_.counts[thread_ % kWarp]});
    if (!mutated(Mutant::kReadAmountsOverlap)) __syncthreads();
    return all;
  }
  static __device__ Amount all_of_warp(Amount mine) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
      mine.sum += __shfl_xor_sync(0xffffffffu, mine.sum, step);
      mine.count += __shfl_xor_sync(0xffffffffu, mine.count, step);
    }
    return mine;
  }

  __device__ int vocab() const { return q_.vocab + (mutated(Mutant::kReadVocab) ? 1 : 0); }

  // Calls f(logit, token) for the thread's share of logits [begin, end), in ascending order. Words
  // of 16 bytes, except at ends that are not aligned to them.
  template <class F>
  __device__ void each(int begin, int end, const F& f) const {
    constexpr int kIn = sizeof(uint4) / sizeof(float);
    const Ptr<const float> from = x_ + begin;
    const int n = end > begin ? end - begin : 0;
    const int head = min(n, static_cast<int>((0 - address_of(from)) / sizeof(float) % kIn));
    const int words = (n - head) / kIn;
    const Ptr<const uint4> aligned = words_of<uint4>(from + head);
    if (thread_ < head) f(from[thread_], begin + thread_);
#pragma unroll 1
    for (int first = thread_; first < words; first += kReadWords * kReadThreads) {
      uint4 x[kReadWords];
#pragma unroll
      for (int u = 0; u < kReadWords; ++u) {
        const int at = first + u * kReadThreads;
        x[u] = at < words ? aligned[at] : uint4{};
      }
#pragma unroll
      for (int u = 0; u < kReadWords; ++u) {
        const int at = first + u * kReadThreads;
        if (at >= words) continue;
        const int token = begin + head + at * kIn;
        f(__uint_as_float(x[u].x), token);
        f(__uint_as_float(x[u].y), token + 1);
        f(__uint_as_float(x[u].z), token + 2);
        f(__uint_as_float(x[u].w), token + 3);
      }
    }
    const int last = head + words * kIn + thread_;
    if (last < n) f(from[last], begin + last);
  }

  // The best token. Its number is infinite if a logit is NaN or +Inf.
  __device__ Ranking scan() {
    Ranking mine = {-INFINITY, kNoToken};
    each(first_, end_, [&](float x, int token) {
      const Ranking one = {x < INFINITY || mutated(Mutant::kReadNan) ? x : INFINITY, token};
      if (one.before(mine)) mine = one;
    });
    return first_of(mine);
  }

  // The token ranked directly after `last`.
  __device__ Ranking best(const Ranking& last) {
    Ranking mine = {-INFINITY, kNoToken};
    each(first_, min(end_, q_.vocab), [&](float x, int token) {
      const Ranking one = {x, token};
      if (last.before(one) && one.before(mine)) mine = one;
    });
    return first_of(mine);
  }

  // Sum of exp((x - max) * scale) over the tokens that `cut` keeps. For thread 0.
  __device__ double sum(float max, float scale, const Cut& cut) {
    block_sums(max, scale, cut, [&](int block, double sum) { s_.blocks[block] = sum; });
    return total();
  }
  // The same of the row's sums by block.
  __device__ double total_of(Ptr<const double> sums) {
    const int blocks = (q_.vocab + kSumBlock - 1) / kSumBlock;
    for (int i = thread_; i < blocks; i += kReadThreads) s_.blocks[i] = sums[i];
    __syncthreads();
    return total();
  }
  __device__ double total() {
    const int blocks = (q_.vocab + kSumBlock - 1) / kSumBlock;
    double total = 0;
    if (thread_ == 0) {
      for (int block = 0; block < blocks; ++block) total += s_.blocks[block];
    }
    __syncthreads();
    return total;
  }

  // store(block, sum) of each block of the part, whose sixteen threads add up a lane each.
  template <class Store>
  __device__ void block_sums(float max, float scale, const Cut& cut, const Store& store) {
    const int blocks = (min(end_, q_.vocab) + kSumBlock - 1) / kSumBlock;
    const int lane = thread_ % kSumLanes;
    for (int first = first_ / kSumBlock; first < blocks; first += kSumGroups) {
      const int block = first + thread_ / kSumLanes;
      const int end = min(q_.vocab, (block + 1) * kSumBlock);
      double sum = 0;
#pragma unroll 8
      for (int i = block * kSumBlock + lane; i < end; i += kSumLanes) {
        const float x = x_[i];
        sum += static_cast<double>(cut.keeps(x, i) ? weight(x, max, scale) : 0.0f);
      }
      s_.lanes[thread_] = sum;
      __syncthreads();
      if (lane == 0 && block < blocks) store(block, join(thread_));
      if (!mutated(Mutant::kReadLanesOverlap)) __syncthreads();
    }
  }

  // Adds sixteen lanes in order.
  __device__ double join(int first) {
    double sum = 0;
    for (int lane = 0; lane < kSumLanes; ++lane) {
      sum += s_.lanes[first + (mutated(Mutant::kReadLanesTurned) ? kSumLanes - 1 - lane : lane)];
    }
    return sum;
  }

  static __device__ float weight(float x, float max, float scale) {
    return exp_nonpositive(__fmul_rn(__fadd_rn(x, -max), scale));
  }

  __device__ Ranking race(float max, const Cut& cut) {
    Ranking mine = {0, kNoToken};
    const bool turned = mutated(Mutant::kRaceKeyTurned);
    each(first_, min(end_, q_.vocab), [&](float x, int token) {
      if (!cut.keeps(x, token)) return;
      const uint32_t word =
          race_word(q_.key[turned ? 1 : 0], q_.key[turned ? 0 : 1], static_cast<uint32_t>(token));
      const float scaled =
          __fmul_rn(weight(x, max, q_.inverse_temperature), 18446744073709551616.0f);  // 2^64
      const float score = __fdiv_rn(scaled, race_exponential(word));
      if (score > mine.number) mine = {score, token};  // ids ascend: the lowest of a tie stays
    });
    return first_of(mine);
  }

  // What top_k, top_p and min_p keep, as sampling::warp().
  __device__ Cut truncation(float max) {
    Cut cut;
    if (q_.top_k > 0 && q_.top_k < q_.vocab) {
      const auto one = [](float) -> uint64_t { return 1; };
      const auto k = static_cast<uint64_t>(q_.top_k);
      cut.number = number_of(edge(best_shares(q_.top_k), max, k, one).key);
      if (mutated(Mutant::kReadTopKTies)) cut.id = -1;
    }
    if (q_.top_p < 1) cut = nucleus(max, cut);
    if (q_.min_reach <= 0) {
      const double least = __dadd_rn(static_cast<double>(max), q_.min_reach);
      if (least > static_cast<double>(cut.number)) cut = {__double2float_ru(least), kNoToken};
    }
    return cut;
  }

  // sampling::nucleus_weight() in units of 2^-35.
  __device__ uint64_t units(float x, float max) const {
    return static_cast<uint64_t>(__fmul_rn(weight(x, max, q_.inverse_temperature), 34359738368.0f));
  }

  // Sums of units are exact, so the nucleus is the CPU's in any order.
  __device__ Cut nucleus(float max, const Cut& of) {
    const auto measure = [&](float x) { return units(x, max); };
    const float from = mutated(Mutant::kReadNucleusOfAll) ? -INFINITY : of.number;
    const uint64_t all = row_amount(key_of(from), ~0u, measure, nullptr).sum;
    const double share = __dmul_rn(static_cast<double>(q_.top_p), static_cast<double>(all));
    auto target = static_cast<uint64_t>(share);
    if (static_cast<double>(target) < share || target == 0) ++target;

    // Tokens of weight at most (1 - p) * all / vocab are cut: together they weigh at most
    // (1 - p) * all. The bound has some slack for rounding.
    const double rest = (1 - static_cast<double>(q_.top_p)) * static_cast<double>(all);
    const double bound = log(rest * 0x1p-35 / q_.vocab) - 1e-3;
    const double reach = bound / static_cast<double>(q_.inverse_temperature);
    const double low = max + reach - 1e-6 * fabs(static_cast<double>(max));
    const uint32_t lowest = key_of(low > -3e38 ? static_cast<float>(low) : -INFINITY);
    const uint32_t cut_key = key_of(of.number);
    const Edge e = edge(lowest > cut_key ? lowest : cut_key, max, target, measure);

    // Of the ties at the edge, as many as do not begin behind p.
    const float number = number_of(e.key);
    if (mutated(Mutant::kReadNucleusTies)) return {number, kNoToken};
    const uint64_t one = units(number, max);
    const auto kept = static_cast<int32_t>(one == 0 ? 1 : (target - e.above + one - 1) / one);
    if (e.ties == 1 && e.listed >= 0) return {number, listed_tie(e)};
    int32_t low_id = 0, high_id = q_.vocab;  // the last kept one is in between
    while (high_id - low_id > 1) {
      const int32_t middle = low_id + (high_id - low_id) / 2;
      if (ties_below(e, middle) >= kept) {
        high_id = middle;
      } else {
        low_id = middle;
      }
    }
    return {number, low_id};
  }

  // Where the measures of logits, largest first, sum to a target.
  struct Edge {
    uint32_t key = 0;    // the largest one such that logits of this or a larger one reach it
    uint64_t above = 0;  // sum over logits of larger keys
    int32_t ties = 0;    // logits of this key
    int32_t listed = 0;  // gathered tokens, among them all of the ties; -1: they are not gathered
  };

  // REQUIRES: logits of key `low` or a larger one reach the target
  template <class Measure>
  __device__ Edge edge(uint32_t low, float max, uint64_t target, const Measure& measure) {
    uint32_t high = key_of(max) + 1;  // logits of this or a larger key do not reach it
    Edge e;
    int32_t own = 0;  // of n, those in the thread's share
    int32_t n = row_amount(low, high, measure, &own).count;
    while (n > kGathered && high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      int32_t mine = 0;
      const Amount upper = row_amount(middle, high, measure, &mine);
      const bool reached = e.above + upper.sum >= target;
      low = reached ? middle : low;
      n = reached ? upper.count : n - upper.count;
      own = reached ? mine : own - mine;
      if (reached) continue;
      high = middle;
      e.above += upper.sum;
    }
    e.listed = n > kGathered ? -1 : n;
    if (e.listed >= 0) gather(low, high, own);
    while (high - low > 1 && n > 1) {
      const uint32_t middle = low + (high - low) / 2;
      const Amount upper = list_amount(e.listed, middle, high, measure);
      const bool reached = e.above + upper.sum >= target;
      low = reached ? middle : low;
      n = reached ? upper.count : n - upper.count;
      if (reached) continue;
      high = middle;
      e.above += upper.sum;
    }
    if (high - low > 1) {  // a single token is left, of this key
      const auto key = [](float x) -> uint64_t { return key_of(x); };
      low = static_cast<uint32_t>(list_amount(e.listed, low, high, key).sum);
    }
    e.key = low;
    e.ties = n;
    return e;
  }

  // A key that at least k logits reach: about the k-th largest of the threads' best ones.
  __device__ uint32_t best_shares(int k) {
    if (k > kReadThreads) return 0;
    uint32_t mine = 0;
    each(0, q_.vocab, [&](float x, int) {
      const uint32_t key = key_of(x);
      mine = key > mine ? key : mine;
    });
    uint32_t low = 0;
#pragma unroll 1
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
      const int32_t reach = all_of({0, mine >= (low | bit) ? 1 : 0}).count;
      if (reach >= k) low |= bit;
      if (reach == k) break;
    }
    return low;
  }

  // Logits of keys [low, high). own: the thread's number of them; may be null
  template <class Measure>
  __device__ Amount row_amount(uint32_t low, uint32_t high, const Measure& measure, int32_t* own) {
    Amount mine;
    each(0, q_.vocab, [&](float x, int) {
      const uint32_t key = key_of(x);
      if (key < low || key >= high) return;
      mine.sum += measure(x);
      ++mine.count;
    });
    if (own != nullptr) *own = mine.count;
    return all_of(mine);
  }
  template <class Measure>
  __device__ Amount list_amount(int n, uint32_t low, uint32_t high, const Measure& measure) {
    Amount mine;
    for (int i = thread_; i < n; i += kReadThreads) {
      const uint32_t key = s_.keys[i];
      if (key < low || key >= high) continue;
      mine.sum += measure(number_of(key));
      ++mine.count;
    }
    return all_of(mine);
  }
  // The id of a single tie.
  __device__ int32_t listed_tie(const Edge& e) {
    Amount mine;
    for (int i = thread_; i < e.listed; i += kReadThreads) {
      if (s_.keys[i] == e.key) mine.count += s_.ids[i];
    }
    return all_of(mine).count;
  }
  // Ties of an edge with ids below `end`.
  __device__ int32_t ties_below(const Edge& e, int32_t end) {
    Amount mine;
    if (e.listed >= 0) {
      for (int i = thread_; i < e.listed; i += kReadThreads) {
        if (s_.keys[i] == e.key && s_.ids[i] < end) ++mine.count;
      }
    } else {
      each(0, end, [&](float x, int) { mine.count += key_of(x) == e.key ? 1 : 0; });
    }
    return all_of(mine).count;
  }

  // Lists the tokens with keys [low, high). own: their number in the share of this thread.
  __device__ void gather(uint32_t low, uint32_t high, int32_t own) {
    s_.found[thread_] = own;
    __syncthreads();
    const int lane = thread_ % kWarp;
    const int warp = thread_ / kWarp;
    if (thread_ < kReadWarps) {
      int32_t all = 0;
      for (int i = 0; i < kWarp; ++i) all += s_.found[thread_ * kWarp + i];
      s_.counts[thread_] = all;
    }
    __syncthreads();
    int32_t at = 0;
    for (int i = 0; i < warp; ++i) at += s_.counts[i];
    for (int i = 0; i < lane; ++i) at += s_.found[warp * kWarp + i];
    each(0, q_.vocab, [&](float x, int token) {
      const uint32_t key = key_of(x);
      if (key < low || key >= high) return;
      s_.keys[at] = key;
      s_.ids[at] = token;
      ++at;
    });
    if (!mutated(Mutant::kReadGatherEarly)) __syncthreads();
  }

  Ptr<const float> x_;
  const RowQuestion q_;
  Shared& s_;
  const int thread_;
  const int first_, end_;  // tokens of the part
};

// logits: [n, stride]; changes: of all rows; questions and answers: [n]. A template, so that
// headers may define it.
template <class Answer>
__global__ void __launch_bounds__(kReadThreads)
    answer_rows_kernel(Ptr<float> logits, int64_t stride, ReadChanges changes,
                       Ptr<const RowQuestion> questions, Ptr<Answer> answers) {
  begin_launch();
  __shared__ RowBlock::Shared shared;
  const int64_t row = blockIdx.x;
  const RowQuestion question = questions[row];
  RowBlock block(logits + row * stride, question, shared);
  block.change(logits + row * stride, changes);
  const Answer answer = block.run();
  if (threadIdx.x == 0) answers[row] = answer;
}

// The steps of divided rows. Grid: parts, rows; or rows.
template <class Part>
__global__ void __launch_bounds__(kReadThreads)
    scan_parts_kernel(Ptr<float> logits, int64_t stride, ReadChanges changes,
                      Ptr<const RowQuestion> questions, ReadSplit split, Ptr<Part> scans) {
  begin_launch();
  __shared__ RowBlock::Shared shared;
  const int64_t row = blockIdx.y;
  const int part = static_cast<int>(blockIdx.x);
  const RowQuestion question = questions[row];
  RowBlock block(logits + row * stride, question, shared, split, part);
  block.change(logits + row * stride, changes);
  const Part scan = block.scan_part();
  const int64_t to = mutated(Mutant::kReadFirstParts) ? part : row * split.parts + part;
  if (threadIdx.x == 0) scans[to] = scan;
}

template <class Row>
__global__ void __launch_bounds__(kReadThreads)
    cut_rows_kernel(Ptr<const float> logits, int64_t stride, Ptr<const RowQuestion> questions,
                    ReadSplit split, Ptr<const PartScan> scans, Ptr<Row> cuts) {
  begin_launch();
  __shared__ RowBlock::Shared shared;
  const int64_t row = blockIdx.x;
  RowBlock block(logits + row * stride, questions[row], shared);
  const Row cut = block.cut_row(scans + row * split.parts, split.parts);
  if (threadIdx.x == 0) cuts[row] = cut;
}

// One block per multiprocessor: for two, the compiler spills.
template <class Drawn>
__global__ void __launch_bounds__(kReadThreads, 1)
    weigh_parts_kernel(Ptr<const float> logits, int64_t stride, Ptr<const RowQuestion> questions,
                       ReadSplit split, Ptr<const RowCut> cuts, Ptr<Drawn> draws,
                       Ptr<double> sums) {
  begin_launch();
  __shared__ RowBlock::Shared shared;
  const int64_t row = blockIdx.y;
  const int part = static_cast<int>(blockIdx.x);
  const RowCut cut = cuts[row];
  if (cut.valid == 0) return;
  RowBlock block(logits + row * stride, questions[row], shared, split, part);
  const int64_t blocks = ReadScratch::blocks(split);
  const Ptr<double> log_sums = sums + 2 * row * blocks;
  const Drawn drawn = block.weigh_part(cut, log_sums, log_sums + blocks);
  if (threadIdx.x == 0) draws[row * split.parts + part] = drawn;
}

template <class Answer>
__global__ void __launch_bounds__(kReadThreads)
    merge_answers_kernel(Ptr<const float> logits, int64_t stride, Ptr<const RowQuestion> questions,
                         ReadSplit split, Ptr<const PartScan> scans, Ptr<const RowCut> cuts,
                         Ptr<const Ranking> draws, Ptr<const double> sums, Ptr<Answer> answers) {
  begin_launch();
  __shared__ RowBlock::Shared shared;
  const int64_t row = blockIdx.x;
  RowBlock block(logits + row * stride, questions[row], shared);
  const int64_t blocks = ReadScratch::blocks(split);
  const int parts = mutated(Mutant::kReadLastPart) ? split.parts - 1 : split.parts;
  const Ptr<const double> log_sums = sums + 2 * row * blocks;
  const Answer answer = block.merge(scans + row * split.parts, cuts[row], draws + row * split.parts,
                                    parts, log_sums, log_sums + blocks);
  if (threadIdx.x == 0) answers[row] = answer;
}

// One thread per row.
template <class Answer>
__global__ void choose_kernel(Ptr<int32_t> to, Ptr<const int32_t> token,
                              Ptr<const ChosenToken> chosen, int64_t rows, Ptr<const Answer> kept) {
  begin_launch();
  const int64_t r = blockIdx.x * int64_t{kChooseThreads} + threadIdx.x;
  if (r >= rows) return;
  const ChosenToken c = chosen[r];
  int32_t t = token[r];
  if (c.answer >= 0 || mutated(Mutant::kChooseAlways)) t = chosen_token(kept, c);
  to[r] = t;
}

// to[r] = the token selected by chosen[r], or token[r]: see Ops::choose().
inline void choose(Stream stream, Ptr<int32_t> to, Ptr<const int32_t> token,
                   Ptr<const ChosenToken> chosen, int64_t rows, Ptr<const RowAnswer> kept) {
  launch(stream, choose_kernel<RowAnswer>,
         {kChooseThreads, (rows + kChooseThreads - 1) / kChooseThreads}, to, token, chosen, rows,
         kept);
}

// split: of the rows; scratch: for divided rows. REQUIRES: 1 <= vocab <= kMostReadVocab for all
// questions; vocab <= stride
inline void answer_rows(Stream stream, Ptr<float> logits, int64_t stride,
                        const ReadChanges& changes, Ptr<const RowQuestion> questions,
                        Ptr<RowAnswer> answers, int64_t n, const ReadSplit& split = {},
                        const ReadScratch& scratch = {}) {
  if (split.tokens > 0) {
    const Geometry parts = {kReadThreads, split.parts, n};
    const Geometry rows = {kReadThreads, n};
    launch(stream, scan_parts_kernel<PartScan>, parts, logits, stride, changes, questions, split,
           scratch.scans);
    launch(stream, cut_rows_kernel<RowCut>, rows, logits, stride, questions, split, scratch.scans,
           scratch.cuts);
    launch(stream, weigh_parts_kernel<Ranking>, parts, logits, stride, questions, split,
           scratch.cuts, scratch.draws, scratch.sums);
    launch(stream, merge_answers_kernel<RowAnswer>, rows, logits, stride, questions, split,
           scratch.scans, scratch.cuts, scratch.draws, scratch.sums, answers);
    return;
  }
  launch(stream, answer_rows_kernel<RowAnswer>, {kReadThreads, n}, logits, stride, changes,
         questions, answers);
}

}  // namespace tandem::cuda
