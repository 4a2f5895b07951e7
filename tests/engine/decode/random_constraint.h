// A constraint by a random automaton over few tokens: sparse in some states, with dead ends, and
// with states of a single legal token.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/fake/model.h"
#include "engine/pass/constraint.h"

namespace tandem::test {

struct AutomatonShape {
  uint64_t seed = 0;
  int vocab = 0;
  std::vector<Token> ends;
  bool dead_ends = false;
};

class RandomConstraint final : public TokenConstraint {
 public:
  explicit RandomConstraint(AutomatonShape shape) : shape_(std::move(shape)) {}

  std::shared_ptr<const LegalTokens> after(std::span<const Token> answer) override {
    ++asked;
    uint64_t state = 0;
    for (const Token t : answer) {
      if (is_end(t) || !legal(state)->has(t)) return nullptr;
      state = next(state, t);
    }
    return legal(state);
  }
  void prepare(std::vector<Token> answer) override { after(answer); }
  size_t legal_drafts(std::span<const Token> answer, std::span<const Token> drafts) override {
    std::vector<Token> path(answer.begin(), answer.end());
    size_t n = 0;
    for (const Token t : drafts) {
      const auto legal = after(path);
      if (legal == nullptr || !legal->has(t)) break;
      path.push_back(t);
      ++n;
    }
    return n;
  }
  std::shared_ptr<const LegalTokens> known(std::span<const Token> answer) override {
    const auto first = after(answer);
    if (first == nullptr) return nullptr;
    auto known = std::make_shared<LegalTokens>(*first);
    std::vector<Token> path(answer.begin(), answer.end());
    for (auto legal = first; known->forced.size() < 40; legal = after(path)) {
      std::vector<Token> left;
      for (Token t = 0; t < shape_.vocab; ++t) {
        if (legal->has(t)) left.push_back(t);
      }
      if (left.size() != 1 || is_end(left[0])) break;
      known->forced.push_back(left[0]);
      path.push_back(left[0]);
    }
    return known;
  }
  std::span<const Token> ends() const override { return shape_.ends; }

  std::atomic<int64_t> asked = 0;

 private:
  static constexpr uint64_t kStates = 9;

  bool is_end(Token t) const { return std::ranges::find(shape_.ends, t) != shape_.ends.end(); }
  uint64_t hash(uint64_t state, Token t) const {
    return fake::mix(fake::mix(shape_.seed, state), static_cast<uint64_t>(t));
  }
  uint64_t next(uint64_t state, Token t) const { return hash(state + 100, t) % kStates; }
  std::shared_ptr<const LegalTokens> legal(uint64_t state) const {
    auto legal = std::make_shared<LegalTokens>();
    legal->bits.assign(static_cast<size_t>(shape_.vocab) / 32 + 1, 0);
    const uint64_t kind = hash(state, -1) % 10;
    const auto allow = [&](Token t) {
      legal->bits[static_cast<size_t>(t) / 32] |= 1U << (static_cast<uint32_t>(t) % 32);
    };
    legal->may_end = kind % 3 == 0;
    const bool dead = shape_.dead_ends && kind == 8;
    const bool single = kind == 1 || kind == 2;
    for (Token t = 0; t < shape_.vocab && !dead; ++t) {
      if (is_end(t) ? legal->may_end : !single && hash(state, t) % 3 != 0) allow(t);
    }
    if (!dead && (single || std::ranges::all_of(legal->bits, [](uint32_t w) { return w == 0; }))) {
      Token t = static_cast<Token>(hash(state, -2) % static_cast<uint64_t>(shape_.vocab));
      for (int i = 0; i < shape_.vocab && is_end(t); ++i) t = (t + 1) % shape_.vocab;
      if (!is_end(t)) allow(t);
    }
    return legal;
  }

  const AutomatonShape shape_;
};

}  // namespace tandem::test
