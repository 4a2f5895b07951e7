// Passes that feed tokens, and what a model should say of them.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tests/engine/sched/kit.h"

namespace tandem::test {

using Answers = std::vector<Token>;

// Adds stages below the top of `model`, which passes of `s` may run to.
inline void add_stages(SequenceSpec& s, ModelId model, std::initializer_list<int> depths) {
  std::vector<CastRole>& roles = edit_cast(s).roles;
  const auto played = std::ranges::find(roles, model, &CastRole::model);
  const Role role = played->role;
  for (const int layers : depths) roles.push_back({role, model, layers});
}

// The most probable token behind `tokens` by the model's first `layers` layers.
inline Token best(const FakeModelConfig& model, const std::vector<Token>& tokens, int layers) {
  const auto l = fake::logits_after(model, tokens, layers);
  return static_cast<Token>(std::max_element(l.begin(), l.end()) - l.begin());
}

// Feeds the tokens to a stage and reads behind the last one.
inline Pass feed(Stage stage, const std::vector<Token>& tokens) {
  Pass p;
  p.stage = stage;
  for (const Token t : tokens) p.add.chain(token_in(t));
  Read r;
  r.rows = last_rows(1, p.add.size());
  p.reading(std::move(r));
  return p;
}

}  // namespace tandem::test
