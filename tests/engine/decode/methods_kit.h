// What the tests of methods share: random pairs of models in all kinds of boxes, and requests whose
// answers references know.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "tests/engine/decode/pairs.h"

namespace tandem::test {

using Rng = std::mt19937_64;

inline int between(Rng& rng, int low, int high) {
  return low + static_cast<int>(rng() % static_cast<uint64_t>(high - low + 1));
}
inline float fraction(Rng& rng) { return static_cast<float>(rng() % 10000) / 10000; }
inline bool chance(Rng& rng, int percent) { return between(rng, 0, 99) < percent; }

// Model 0 is large, model 1 small. Few tokens, so that they agree now and then; sometimes small is
// large, so that they always do.
BoxOptions random_pair(Rng& rng, bool tight = false);

Warp random_warp(Rng& rng, bool greedy);

std::shared_ptr<const Processors> random_processors(Rng& rng, int vocab, int prompt_tokens);

// A request without its method: prompt, warp, end tokens, length.
SequenceSpec random_spec(Box& box, Rng& rng, bool greedy);

// Stops when the last tokens are these: a stop string of that many tokens.
class TokenStop final : public TextStops {
 public:
  explicit TokenStop(std::vector<Token> stop) : stop_(std::move(stop)) {}
  std::unique_ptr<TextStops> clone() const override;
  int push(Token token) override;
  bool would_stop(std::span<const Token> tokens) const override;

 private:
  bool matches(const std::vector<Token>& text) const;

  const std::vector<Token> stop_;
  std::vector<Token> text_;
};

// Looks into every batch before it runs, for a box with one request at a time: whatever the request
// has in a cache must be what a fresh prefill of its final tokens would leave there.
class CacheWatch {
 public:
  explicit CacheWatch(Box* box);
  // The next request, to be submitted right after this.
  void follow(const std::vector<Token>& prompt, std::shared_ptr<Recorder> recorder);
  int64_t layer_rows = 0;  // of the request so far
  int64_t looked_at = 0;   // cache rows

 private:
  using Place = std::pair<ModelId, size_t>;  // a slot of a KV pool

  // The batch's moves come before its works.
  void follow(const Move& m);
  FakeMemory::Slot at(const Place& place) const;
  void look(const Work& w);

  Box* const box_;
  std::vector<Token> prompt_;
  std::shared_ptr<Recorder> recorder_;
  std::map<ModelId, size_t> final_;  // tokens at the last look
  std::map<Place, FakeMemory::Slot> moved_;
};

// Is the sample of `count[cell]` draws compatible with `probability[cell]`? Pearson's statistic
// with cells of less than 5 expected draws pooled; its upper tail by Wilson and Hilferty (1931).
bool chi_square_fits(const std::map<std::vector<Token>, double>& probability,
                     const std::map<std::vector<Token>, int>& count, double* z_out = nullptr);

}  // namespace tandem::test
