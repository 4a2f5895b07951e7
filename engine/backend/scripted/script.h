// What a large and a small model answer where a benchmark says how often they agree.
//
// Every answer is a pure function of the script, the request (Warp::seed and choice) and the
// position of the token: text that is decoded again, by whatever method, is the same text.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

struct Script {
  uint64_t seed = 1;
  int vocab_size = 2;    // answers are in [0, vocab_size). At least 2
  double agreement = 1;  // share of the positions where small's token is large's own. [0, 1]
  double foresight = 0;  // share of the other positions where small is unsure. [0, 1]
  // Of a mask m_{i + 1} how often its candidate of each rank is large's token, at each position by
  // itself: [i][rank], of which a mask's add up to at most 1. Beyond: never.
  std::vector<std::vector<double>> masks = {};
  // How often an early layer's candidate of each rank is large's token: [rank], at most 1 together.
  std::vector<double> early = {};

  // Small's confidence (largest probability) where it is sure and where it is not, and large's
  // negative log-likelihood of its own token and of any other. Whatever thresholds are in use lie
  // between: fallback_threshold, and a rollback_threshold that is under or over ln 2.
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
  bool sure(int position) const;  // small: everywhere it agrees, and where it does not foresee
  // The `top` best candidates of m_{mask + 1} for this position. REQUIRES: top < vocab_size.
  std::vector<Token> candidates(int mask, int position, int top) const;
  // The same of an early layer, whichever model has it.
  std::vector<Token> early(int position, int top) const;

 private:
  std::vector<Token> ranked(const std::vector<double>& rates, uint64_t seed, int position,
                            int top) const;

  Script script_;
  uint64_t seed_;
  uint32_t choice_;
};

}  // namespace tandem
