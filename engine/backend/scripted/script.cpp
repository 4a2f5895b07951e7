#include "engine/backend/scripted/script.h"

#include <algorithm>

#include "engine/sampling/random.h"

namespace tandem {
namespace {

using sampling::Purpose;
using sampling::uniform;

// Maps u in [0, 1) to one of n tokens.
Token one_of(int n, double u) { return std::min(static_cast<Token>(u * n), n - 1); }

}  // namespace

Token ScriptedText::large(int position) const {
  return one_of(script_.vocab_size, uniform(seed_, choice_, Purpose::kToken, position));
}

bool ScriptedText::agree(int position) const {
  return uniform(seed_, choice_, Purpose::kAccept, position) < script_.agreement;
}

Token ScriptedText::small(int position) const {
  const Token own = large(position);
  if (agree(position)) return own;
  const double u = uniform(seed_, choice_, Purpose::kDraft, position);
  return (own + 1 + one_of(script_.vocab_size - 1, u)) % script_.vocab_size;
}

std::vector<Token> ScriptedText::ranked(const std::vector<double>& rates, uint64_t seed,
                                        int position, int top) const {
  const Token own = large(position);
  std::vector<Token> best;
  for (int i = 0; i < top; ++i) best.push_back((own + 1 + i) % script_.vocab_size);
  double u = uniform(seed, choice_, Purpose::kDraft, position);
  for (size_t rank = 0; rank < std::min(best.size(), rates.size()); ++rank) {
    u -= rates[rank];
    if (u >= 0) continue;
    best[rank] = own;
    break;
  }
  return best;
}

std::vector<Token> ScriptedText::candidates(int mask, int position, int top) const {
  const auto m = static_cast<size_t>(mask);
  const bool known = m < script_.masks.size();
  return ranked(known ? script_.masks[m] : std::vector<double>(), seed_ + m, position, top);
}

std::vector<Token> ScriptedText::early(int position, int top) const {
  return ranked(script_.early, ~seed_, position, top);
}

bool ScriptedText::sure(int position) const {
  return agree(position) ||
         uniform(seed_, choice_, Purpose::kResidual, position) >= script_.foresight;
}

}  // namespace tandem
