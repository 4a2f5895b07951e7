// From logits to the distribution that tokens are drawn from.
//
// The warpers are those of Transformers (generation/logits_process.py), in its order: temperature,
// top_k, top_p, min_p, typical_p. The surviving tokens form a range in one fixed order (by logit,
// ties by id), so a few numbers describe them for any vocabulary (Warped). All warpers but
// typical_p cut below a threshold. typical_p keeps the tokens nearest to a log-probability, which
// may also cut above one. Logits processors come before (processors.h).
//
// Pure functions on spans. A Scratch retains its memory between calls and belongs to one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/sampling_params.h"
#include "engine/pass/pass.h"

namespace tandem::sampling {

// The warpers' parameters; processors, vocab, seed and choice stay unset. Unset fields are off.
// REQUIRES: validate() (params.h) accepts `params`.
Warp warp_of(const SamplingParams& params);

// Result of one pass over a row.
struct Scan {
  float max = 0;
  Token argmax = -1;   // lowest id of the maximum
  bool valid = false;  // no NaN, no +Inf, not all -Inf; if false, max and argmax are undefined
};
Scan scan(std::span<const float> logits);

// Working memory of these functions.
struct Scratch {
  struct Candidate {
    float logit;
    Token id;
    float weight;
  };
  std::vector<float> weight;  // [vocab]: what warp() leaves
  std::vector<Candidate> candidate;
  std::vector<float> block_max, sorted;
};

// Result of the warpers. A token survives if its logit is at most `ceiling`, and either above `cut`
// or equal to it with an id of at most `cut_id`.
struct Warped {
  float max = 0;  // largest logit
  float inverse_temperature = 1;
  float cut = -std::numeric_limits<float>::infinity();
  Token cut_id = kAllOfTie;
  float ceiling = std::numeric_limits<float>::infinity();
  double total = 0;  // sum of exp((logit - max) / temperature) over the survivors

  static constexpr Token kAllOfTie = std::numeric_limits<Token>::max();

  bool survives(Token id, float logit) const {
    return logit <= ceiling && (logit > cut || (logit == cut && id <= cut_id));
  }
  // log-probability; -Inf where cut.
  float logprob(Token id, float logit) const;
};

// The factor of logits; finite.
float inverse_temperature(const Warp& warp);

// The numbers of a warp that cut below a threshold. A device's RowQuestion has the same.
struct Cuts {
  float inverse_temperature = 1;
  int top_k = 0;         // 0: off
  float top_p = 1;       // 1: off
  double min_reach = 1;  // min_p: temperature * log(min_p), added to the largest logit; 1: off
};
Cuts cuts_of(const Warp& warp);

// The weight w of a token, in [0, 1], as top_p adds it up: cut to a multiple of 2^-35. Sums of up
// to 2^18 of these are exact in double. So the nucleus does not depend on the order of summation,
// and devices with other orders find the same.
inline float nucleus_weight(float w) {
  constexpr float kExact = 0x1p-12f;  // numbers of 24 bits from here on are such multiples
  const float small = w < kExact ? w : kExact;
  const float cut = static_cast<float>(static_cast<int32_t>(small * 0x1p35f)) * 0x1p-35f;
  return w < kExact ? cut : w;
}

// Writes exp((logit - max) / temperature) of the survivors, and 0 elsewhere, to scratch.weight.
// REQUIRES: warp is not greedy, params.h accepts it, and scan(logits) is valid.
//   temperature  divides
//   top_k        keeps tokens not below the k-th largest logit; more than k in a tie
//   top_p        keeps the most probable tokens while those before them sum to less than p, in
//                nucleus_weight(). The token that crosses p is kept, so at least one is. Of a tie
//                at the end, the lowest ids stay (Transformers keeps as many, but does not define
//                which)
//   min_p        keeps tokens with at least min_p times the largest probability
//   typical_p    keeps the tokens whose log-probability is nearest to its mean (the negative
//                entropy after the other warpers) until they sum to p; all of a tie in distance
//                (Meister et al. 2022, "Locally typical sampling"). May drop the best token
Warped warp(const Warp& warp, std::span<const float> logits, const Scan& scan, Scratch& scratch);
// Without typical_p.
Warped warp(const Cuts& cuts, std::span<const float> logits, const Scan& scan, Scratch& scratch);

// The same as probabilities. probs: [vocab], may be `logits` itself. Greedy: one-hot on the argmax.
void warp_to_probs(const Warp& warp, std::span<const float> logits, std::span<float> probs,
                   Scratch& scratch);

// probs[i] = weights[i] / total. probs may be `weights` itself.
void normalize(std::span<const float> weights, double total, std::span<float> probs);

// log of the sum of exp(logit - max) over the row: log_softmax(x)[i] = x[i] - max - this.
double log_normalizer(std::span<const float> logits, float max);

// The n best by logit, ties by lower id. `out` is replaced; shorter if the vocabulary is.
void top_n(std::span<const float> logits, int n, Scratch& scratch, std::vector<Token>& out);

// Sum of a row in a fixed order.
double sum(std::span<const float> weights);

}  // namespace tandem::sampling
