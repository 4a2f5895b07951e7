// What the references of all methods share: a row of a model, a draw from it, an output that stops.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/backend/fake/model.h"
#include "engine/pass/pass.h"
#include "engine/sampling/random.h"

namespace tandem::reference {

using Tokens = std::vector<Token>;

// What a row gets of the rows that an encoder has made of a source.
uint64_t memory_of(const Tokens& source);

// The first `layers` layers of a model, which reads a source where there is one.
struct Model {
  FakeModelConfig config;
  int layers = 0;
  uint64_t memory = 0;
  int first = 0;  // rows that `memory` stands for, before those of tokens

  explicit Model(const FakeModelConfig& c, int to = 0, const Tokens& source = {});
  std::vector<float> logits_after(const Tokens& tokens) const;
};

// The token v with the least E_v / w_v, as sampling/race.h has it, said as plainly as it can be.
Token race(const std::vector<float>& weights, std::array<uint32_t, 2> key);

// The model's output after `tokens`.
struct Row {
  std::vector<float> logits;
  int position = 0;  // of the row
  Token argmax = -1;

  // `ids`: the row ends there, but for the tokens in `more`; 0: all of it.
  Row(const Model& m, const Tokens& tokens, int ids = 0, const Tokens& more = {});
  Row(std::vector<float> of_logits, int at, int ids, const Tokens& more = {});

  double log_softmax(Token t) const;
  double confidence() const;

  // The distribution that is drawn from; greedy: all on the argmax.
  std::vector<float> warped(const Warp& warp) const;
  double uniform(const Warp& w, sampling::Purpose purpose, int round_start) const;
  Token draw(const Warp& w, sampling::Purpose purpose = sampling::Purpose::kToken,
             int round_start = 0) const;
  // Who wins the race of these weights (sampling/race.h).
  Token first_home(const std::vector<float>& weights, const Warp& w, sampling::Purpose purpose,
                   int round_start = 0) const;
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
  bool is_eos(Token t) const;
  // False: it does not count any more.
  bool push(Token t);
  bool would_end(const Tokens& more) const;
};

Tokens joined(Tokens a, const Tokens& b);

}  // namespace tandem::reference
