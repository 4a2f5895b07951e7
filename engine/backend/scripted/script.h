// Scripted answers of a large and a small model that agree at a given rate, for benchmarks.
//
// An answer is a pure function of the script, the request (Warp::seed and choice) and the position.
// So every method decodes the same text.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

struct Script {
  uint64_t seed = 1;
  int vocab_size = 2;    // answers are in [0, vocab_size); at least 2
  double agreement = 1;  // share of positions where the models' tokens are equal. [0, 1]
  double foresight = 0;  // share of the others where the small model is unsure. [0, 1]
  // Of mask m_{i + 1}: the probability that its candidate of each rank is the large model's token,
  // independently at each position. [i][rank]; at most 1 per mask in total. Other masks: 0.
  std::vector<std::vector<double>> masks = {};
  // The same for the candidates of an early layer. [rank]; at most 1 in total.
  std::vector<double> early = {};

  // The small model's confidence (largest probability) where it is sure and unsure, and the large
  // model's negative log-likelihood of its own and of another token. Usual values of
  // fallback_threshold and rollback_threshold are in between.
  static constexpr float kSure = 0.95F;
  static constexpr float kUnsure = 0.05F;
  static constexpr float kExpected = 0.05F;
  static constexpr float kSurprising = 8;
};

// The answers to one choice of one request. `position` is that of the token in its sequence.
class ScriptedText {
 public:
  ScriptedText(const Script& script, uint64_t seed, uint32_t choice)
      : script_(script), seed_(script.seed ^ seed), choice_(choice) {}

  Token large(int position) const;
  Token small(int position) const;
  bool agree(int position) const;
  bool sure(int position) const;  // the small model; always if it agrees
  // The `top` best candidates of mask m_{mask + 1}. REQUIRES: top < vocab_size.
  std::vector<Token> candidates(int mask, int position, int top) const;
  // The same of an early layer of any model.
  std::vector<Token> early(int position, int top) const;

 private:
  std::vector<Token> ranked(const std::vector<double>& rates, uint64_t seed, int position,
                            int top) const;

  Script script_;
  uint64_t seed_;
  uint32_t choice_;
};

}  // namespace tandem
