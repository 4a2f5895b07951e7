#include "tests/reference/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/sampling/race.h"
#include "engine/sampling/warp.h"

namespace tandem::reference {

uint64_t memory_of(const Tokens& source) {
  uint64_t sum = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    sum += fake::mix(3, fake::seen(fake::token_input(source[i]), static_cast<int>(i)));
  }
  return sum;
}

Model::Model(const FakeModelConfig& c, int to, const Tokens& source)
    : config(c), layers(to ? to : c.layers), memory(memory_of(source)) {}

std::vector<float> Model::logits_after(const Tokens& tokens) const {
  uint64_t sum = memory;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sum += fake::seen(fake::token_input(tokens[i]), first + static_cast<int>(i));
  }
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  fake::logits(config, sum, layers, logits);
  return logits;
}

Token race(const std::vector<float>& weights, std::array<uint32_t, 2> key) {
  Token first = -1;
  float speed = 0;
  for (uint32_t v = 0; v < weights.size(); ++v) {
    uint32_t x = v + key[0];
    x = (x ^ (x >> 17)) * 0xed5ad4bb;
    x = ((x ^ (x >> 11)) + key[1]) * 0xac4c1b51;
    x = (x ^ (x >> 15)) * 0x31848bab;
    x = x ^ (x >> 14);
    // E to the last bit, or a near tie would be decided differently.
    const float of_v = std::ldexp(weights[v], 64) / sampling::exponential(x);
    if (of_v > speed) {
      speed = of_v;
      first = static_cast<Token>(v);
    }
  }
  return first;
}

Row::Row(const Model& m, const Tokens& tokens, int ids, const Tokens& more)
    : Row(m.logits_after(tokens), static_cast<int>(tokens.size()) - 1, ids, more) {}

Row::Row(std::vector<float> of_logits, int at, int ids, const Tokens& more)
    : logits(std::move(of_logits)), position(at) {
  for (size_t i = index(ids); ids > 0 && i < logits.size(); ++i) {
    if (std::ranges::find(more, static_cast<Token>(i)) != more.end()) continue;
    logits[i] = -std::numeric_limits<float>::infinity();
  }
  argmax = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double Row::log_softmax(Token t) const {
  double total = 0;
  for (const float x : logits) total += std::exp(double{x} - logits[index(argmax)]);
  return double{logits[index(t)]} - logits[index(argmax)] - std::log(total);
}

double Row::confidence() const { return std::exp(log_softmax(argmax)); }

std::vector<float> Row::warped(const Warp& warp) const {
  std::vector<float> p(logits.size());
  sampling::Scratch scratch;
  sampling::warp_to_probs(warp, logits, p, scratch);
  return p;
}

double Row::uniform(const Warp& w, sampling::Purpose purpose, int round_start) const {
  return sampling::uniform(w.seed, w.choice, purpose, position, round_start);
}

Token Row::draw(const Warp& w, sampling::Purpose purpose, int round_start) const {
  if (w.greedy()) return argmax;
  sampling::Scratch scratch;
  sampling::warp(w, logits, sampling::scan(logits), scratch);
  return first_home(scratch.weight, w, purpose, round_start);
}

Token Row::first_home(const std::vector<float>& weights, const Warp& w, sampling::Purpose purpose,
                      int round_start) const {
  return race(weights, sampling::race_key(w.seed, w.choice, purpose, position, round_start));
}

bool Output::is_eos(Token t) const { return std::find(eos.begin(), eos.end(), t) != eos.end(); }

bool Output::push(Token t) {
  if (ended) return false;
  ended = is_eos(t);
  if (ended) return false;
  seq.push_back(t);
  tokens.push_back(t);
  ended = remaining() == 0;
  return true;
}

bool Output::would_end(const Tokens& more) const {
  return static_cast<int>(more.size()) >= remaining() ||
         std::any_of(more.begin(), more.end(), [this](Token t) { return is_eos(t); });
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tandem::reference
