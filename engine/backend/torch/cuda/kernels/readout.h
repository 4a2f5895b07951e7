// Readout of rows of logits, one thread block per row: maximum, softmax sums, top tokens, sampling.
// Bit-identical to the CPU (engine/sampling/lanes.h, race.h): the same order of summation, and each
// operation rounded separately or fused as there.
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

class RowBlock {
 public:
  struct Shared {
    SharedArray<float, kReadWarps> numbers;
    SharedArray<int32_t, kReadWarps> tokens;
    SharedArray<int32_t, kAnsweredTop> top;  // of thread 0
    SharedArray<float, kAnsweredTop> top_logit;
    SharedArray<double, kReadThreads> lanes;
    SharedArray<double, kMostReadVocab / kSumBlock> blocks;
  };

  __device__ RowBlock(Ptr<const float> logits, const RowQuestion& question, Shared& shared)
      : x_(logits), q_(question), s_(shared), thread_(static_cast<int>(threadIdx.x)) {}

  // The result is valid in thread 0.
  __device__ RowAnswer run() {
    RowAnswer a;
    const Ranking first = scan();
    a.max = first.number;
    a.argmax = first.token;
    const bool below_infinity = first.number < INFINITY || mutated(Mutant::kReadNan);
    a.valid = below_infinity && first.number > -INFINITY ? 1 : 0;
    if (a.valid == 0) return a;  // uniform over the thread block
    Ranking last = first;
#pragma unroll 1
    for (int i = 0; i < min(q_.top, kAnsweredTop); ++i) {
      if (i > 0) last = best(last);
      if (thread_ != 0) continue;
      s_.top[i] = last.token;
      s_.top_logit[i] = last.number;
    }
    if (q_.scored >= 0) a.scored = x_[q_.scored];
    if (q_.sums != 0) a.log_sum = sum(a.max, 1.0f);
    if (q_.inverse_temperature > 0) {
      a.total = sum(a.max, q_.inverse_temperature);
      const Ranking drawn = race(a.max);
      a.drawn = drawn.token == kNoToken ? -1 : drawn.token;
      if (a.drawn >= 0) a.drawn_logit = x_[a.drawn];
    }
#pragma unroll  // a variable index would place the answer in local memory
    for (int i = 0; i < kAnsweredTop; ++i) {
      if (i >= q_.top || thread_ != 0) continue;
      a.top[i] = s_.top[i];
      a.top_logit[i] = s_.top_logit[i];
    }
    return a;
  }

 private:
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

  __device__ int vocab() const { return q_.vocab + (mutated(Mutant::kReadVocab) ? 1 : 0); }

  // Calls f(logit, token) for the thread's share of the first n logits, in ascending order. Words
  // of 16 bytes, except at the ends of a row that is not aligned to them.
  template <class F>
  __device__ void each(int n, const F& f) const {
    constexpr int kIn = sizeof(uint4) / sizeof(float);
    const int head = min(n, static_cast<int>((0 - address_of(x_)) / sizeof(float) % kIn));
    const int words = (n - head) / kIn;
    const Ptr<const uint4> aligned = words_of<uint4>(x_ + head);
    if (thread_ < head) f(x_[thread_], thread_);
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
        const int token = head + at * kIn;
        f(__uint_as_float(x[u].x), token);
        f(__uint_as_float(x[u].y), token + 1);
        f(__uint_as_float(x[u].z), token + 2);
        f(__uint_as_float(x[u].w), token + 3);
      }
    }
    const int last = head + words * kIn + thread_;
    if (last < n) f(x_[last], last);
  }

  // The best token. Its number is infinite if a logit is NaN or +Inf.
  __device__ Ranking scan() {
    Ranking mine = {-INFINITY, kNoToken};
    each(vocab(), [&](float x, int token) {
      const Ranking one = {x < INFINITY || mutated(Mutant::kReadNan) ? x : INFINITY, token};
      if (one.before(mine)) mine = one;
    });
    return first_of(mine);
  }

  // The token ranked directly after `last`.
  __device__ Ranking best(const Ranking& last) {
    Ranking mine = {-INFINITY, kNoToken};
    each(q_.vocab, [&](float x, int token) {
      const Ranking one = {x, token};
      if (last.before(one) && one.before(mine)) mine = one;
    });
    return first_of(mine);
  }

  // Sum of exp((x - max) * scale), sixteen threads per block of the row, by lane. For thread 0.
  __device__ double sum(float max, float scale) {
    const int blocks = (q_.vocab + kSumBlock - 1) / kSumBlock;
    const int lane = thread_ % kSumLanes;
    for (int first = 0; first < blocks; first += kSumGroups) {
      const int block = first + thread_ / kSumLanes;
      const int end = min(q_.vocab, (block + 1) * kSumBlock);
      double sum = 0;
#pragma unroll 8
      for (int i = block * kSumBlock + lane; i < end; i += kSumLanes) {
        sum += static_cast<double>(weight(x_[i], max, scale));
      }
      s_.lanes[thread_] = sum;
      __syncthreads();
      if (lane == 0 && block < blocks) s_.blocks[block] = join(thread_);
      if (!mutated(Mutant::kReadLanesOverlap)) __syncthreads();
    }
    double total = 0;
    if (thread_ == 0) {
      for (int block = 0; block < blocks; ++block) total += s_.blocks[block];
    }
    __syncthreads();
    return total;
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

  __device__ Ranking race(float max) {
    Ranking mine = {0, kNoToken};
    const bool turned = mutated(Mutant::kRaceKeyTurned);
    each(q_.vocab, [&](float x, int token) {
      const uint32_t word =
          race_word(q_.key[turned ? 1 : 0], q_.key[turned ? 0 : 1], static_cast<uint32_t>(token));
      const float scaled =
          __fmul_rn(weight(x, max, q_.inverse_temperature), 18446744073709551616.0f);  // 2^64
      const float score = __fdiv_rn(scaled, race_exponential(word));
      if (score > mine.number) mine = {score, token};  // ids ascend: the lowest of a tie stays
    });
    return first_of(mine);
  }

  Ptr<const float> x_;
  const RowQuestion q_;
  Shared& s_;
  const int thread_;
};

// logits: [n, stride]; questions and answers: [n]. A template, so that headers may define it.
template <class Answer>
__global__ void __launch_bounds__(kReadThreads)
    answer_rows_kernel(Ptr<const float> logits, int64_t stride, Ptr<const RowQuestion> questions,
                       Ptr<Answer> answers) {
  begin_launch();
  __shared__ RowBlock::Shared shared;
  const int64_t row = blockIdx.x;
  const RowQuestion question = questions[row];
  RowBlock block(logits + row * stride, question, shared);
  const Answer answer = block.run();
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
  if (c.answer >= 0 || mutated(Mutant::kChooseAlways)) {
    // Accessed as words: a variable index into registers would place the answer in local memory.
    const Ptr<const int32_t> words =
        words_of<int32_t>(kept) + c.answer * static_cast<int64_t>(sizeof(Answer) / 4);
    const int which = mutated(Mutant::kChooseBest) ? ChosenToken::kArgmax : c.which;
    const size_t at = which == ChosenToken::kArgmax ? offsetof(Answer, argmax)
                      : which == ChosenToken::kDrawn
                          ? offsetof(Answer, drawn)
                          : offsetof(Answer, top) + sizeof(int32_t) * which;
    t = words[static_cast<int64_t>(at / 4)];
    if (words[offsetof(Answer, valid) / 4] == 0 && !mutated(Mutant::kChooseInvalid)) t = -1;
  }
  to[r] = t;
}

// to[r] = the token selected by chosen[r], or token[r]: see Ops::choose().
inline void choose(Stream stream, Ptr<int32_t> to, Ptr<const int32_t> token,
                   Ptr<const ChosenToken> chosen, int64_t rows, Ptr<const RowAnswer> kept) {
  launch(stream, choose_kernel<RowAnswer>,
         {kChooseThreads, (rows + kChooseThreads - 1) / kChooseThreads}, to, token, chosen, rows,
         kept);
}

// REQUIRES: 1 <= vocab <= kMostReadVocab for all questions.
inline void answer_rows(Stream stream, Ptr<const float> logits, int64_t stride,
                        Ptr<const RowQuestion> questions, Ptr<RowAnswer> answers, int64_t n) {
  launch(stream, answer_rows_kernel<RowAnswer>, {kReadThreads, n}, logits, stride, questions,
         answers);
}

}  // namespace tandem::cuda
