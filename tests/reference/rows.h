// What the references of all methods share: a row of a model, a draw from it, an output that stops.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "engine/backend/fake/model.h"
#include "engine/sampling/race.h"
#include "engine/sampling/random.h"
#include "engine/sampling/warp.h"

namespace tandem::reference {

using Tokens = std::vector<Token>;

// What a row gets of the rows that an encoder has made of a source.
inline uint64_t memory_of(const Tokens& source) {
  uint64_t sum = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    sum += fake::mix(3, fake::seen(fake::token_input(source[i]), static_cast<int>(i)));
  }
  return sum;
}

// The first `layers` layers of a model, which reads a source where there is one.
struct Model {
  FakeModelConfig config;
  int layers = 0;
  uint64_t memory = 0;
  int first = 0;  // rows that `memory` stands for, before those of tokens

  explicit Model(const FakeModelConfig& c, int to = 0, const Tokens& source = {})
      : config(c), layers(to ? to : c.layers), memory(memory_of(source)) {}

  std::vector<float> logits_after(const Tokens& tokens) const {
    uint64_t sum = memory;
    for (size_t i = 0; i < tokens.size(); ++i) {
      sum += fake::seen(fake::token_input(tokens[i]), first + static_cast<int>(i));
    }
    std::vector<float> logits(static_cast<size_t>(config.vocab_size));
    fake::logits(config, sum, layers, logits);
    return logits;
  }
};

// The token v with the least E_v / w_v, as sampling/race.h has it, said as plainly as it can be.
inline Token race(const std::vector<float>& weights, std::array<uint32_t, 2> key) {
  Token first = -1;
  float speed = 0;
  for (uint32_t v = 0; v < weights.size(); ++v) {
    uint32_t x = v + key[0];
    x = (x ^ (x >> 17)) * 0xed5ad4bb;
    x = ((x ^ (x >> 11)) + key[1]) * 0xac4c1b51;
    x = (x ^ (x >> 15)) * 0x31848bab;
    x = x ^ (x >> 14);
    // E to the last bit, or a near tie would be told otherwise.
    const float of_v = std::ldexp(weights[v], 64) / sampling::exponential(x);
    if (of_v > speed) {
      speed = of_v;
      first = static_cast<Token>(v);
    }
  }
  return first;
}

// What the model says after `tokens`.
struct Row {
  std::vector<float> logits;
  int position = 0;  // of the row
  Token argmax = -1;

  // `ids`: the row ends there; 0: all of it.
  Row(const Model& m, const Tokens& tokens, int ids = 0)
      : logits(m.logits_after(tokens)), position(static_cast<int>(tokens.size()) - 1) {
    if (ids > 0 && index(ids) < logits.size()) logits.resize(index(ids));
    argmax = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  double log_softmax(Token t) const {
    double total = 0;
    for (const float x : logits) total += std::exp(double{x} - logits[index(argmax)]);
    return double{logits[index(t)]} - logits[index(argmax)] - std::log(total);
  }
  double confidence() const { return std::exp(log_softmax(argmax)); }

  // The distribution that is drawn from; greedy: all on the argmax.
  std::vector<float> warped(const Warp& warp) const {
    std::vector<float> p(logits.size());
    sampling::Scratch scratch;
    sampling::warp_to_probs(warp, logits, p, scratch);
    return p;
  }
  double uniform(const Warp& w, sampling::Purpose purpose, int round_start) const {
    return sampling::uniform(w.seed, w.choice, purpose, position, round_start);
  }
  Token draw(const Warp& w, sampling::Purpose purpose = sampling::Purpose::kToken,
             int round_start = 0) const {
    if (w.greedy()) return argmax;
    sampling::Scratch scratch;
    sampling::warp(w, logits, sampling::scan(logits), scratch);
    return first_home(scratch.weight, w, purpose, round_start);
  }
  // Who wins the race of these weights (sampling/race.h).
  Token first_home(const std::vector<float>& weights, const Warp& w, sampling::Purpose purpose,
                   int round_start = 0) const {
    return race(weights, sampling::race_key(w.seed, w.choice, purpose, position, round_start));
  }
  static size_t index(Token t) { return static_cast<size_t>(t); }
};

// Final tokens, cut where autoregressive decoding stops.
struct Output {
  Tokens seq;  // prompt and tokens
  Tokens eos;
  int wanted = 0;  // max_new_tokens
  Tokens tokens;
  bool ended = false;

  int remaining() const { return wanted - static_cast<int>(tokens.size()); }
  bool is_eos(Token t) const { return std::find(eos.begin(), eos.end(), t) != eos.end(); }
  // False: it does not count any more.
  bool push(Token t) {
    if (ended) return false;
    ended = is_eos(t);
    if (ended) return false;
    seq.push_back(t);
    tokens.push_back(t);
    ended = remaining() == 0;
    return true;
  }
  bool would_end(const Tokens& more) const {
    return static_cast<int>(more.size()) >= remaining() ||
           std::any_of(more.begin(), more.end(), [this](Token t) { return is_eos(t); });
  }
};

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tandem::reference
