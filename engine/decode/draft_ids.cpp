#include "engine/decode/draft_ids.h"

#include <algorithm>

namespace tandem {

int draft_ids(const Warp& warp, int draft_vocabulary) {
  if (draft_vocabulary == 0) return warp.vocab;
  size_t banned = 0;
  if (const Processors* p = warp.processors.get()) banned = p->bias.size() + p->ends.size();
  const int ids = std::max(draft_vocabulary, static_cast<int>(banned) + 1);
  return warp.vocab > 0 ? std::min(warp.vocab, ids) : ids;
}

}  // namespace tandem
