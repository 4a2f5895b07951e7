#include "engine/backend/scripted/script.h"

#include <algorithm>

#include "engine/sampling/random.h"

namespace tandem {
namespace {

using sampling::Purpose;
using sampling::uniform;

// u in [0, 1) as one of n.
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

bool ScriptedText::sure(int position) const {
  return agree(position) ||
         uniform(seed_, choice_, Purpose::kResidual, position) >= script_.foresight;
}

}  // namespace tandem
