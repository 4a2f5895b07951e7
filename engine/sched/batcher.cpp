#include "engine/sched/batcher.h"

#include <algorithm>

namespace tandem {
namespace {

ModelId model_in_turn(std::span<const Candidate> candidates, ModelId last) {
  ModelId next, first;
  for (const Candidate& c : candidates) {
    if (!first.valid() || c.model < first) first = c.model;
    if (c.model > last && (!next.valid() || c.model < next)) next = c.model;
  }
  return next.valid() ? next : first;
}

}  // namespace

std::vector<Picked> pick_batch(std::span<const Candidate> candidates, ModelId last,
                               const BatchLimits& limits) {
  std::vector<Picked> picked;
  if (candidates.empty()) return picked;
  const ModelId model = model_in_turn(candidates, last);
  std::vector<const Candidate*> decodes, prefills;
  for (const Candidate& c : candidates) {
    if (c.model != model) continue;
    const bool long_chain = c.splittable > 0 && c.total() > limits.chunk_rows / 4;
    (long_chain ? prefills : decodes).push_back(&c);
  }
  const auto older = [](const Candidate* a, const Candidate* b) {
    return a->priority != b->priority ? a->priority > b->priority : a->order < b->order;
  };
  std::sort(decodes.begin(), decodes.end(), older);
  std::sort(prefills.begin(), prefills.end(), older);

  int left = limits.step_rows;
  int works = limits.works;
  int for_prefill = 0;
  if (!prefills.empty()) {
    for_prefill = std::max(limits.step_rows / 4, prefills.front()->fixed_rows + 1);
    --works;
  }
  for (const Candidate* c : decodes) {
    // The first of all goes in whatever its size, so that it always goes on.
    const bool first = picked.empty() && (prefills.empty() || older(c, prefills.front()));
    const bool room = c->total() <= left - for_prefill && static_cast<int>(picked.size()) < works;
    if (!first && !room) continue;
    picked.push_back({c->index, c->rows});
    left -= c->total();
  }
  for (const Candidate* c : prefills) {
    if (static_cast<int>(picked.size()) >= limits.works) break;
    int count = std::min({c->rows, limits.chunk_rows, left - c->fixed_rows});
    if (c->rows > count) count = std::min(count, c->splittable);
    if (count < c->rows && count <= 0) {
      // No room, or nothing can be cut off: whole, when it would otherwise never run.
      if (!picked.empty()) continue;
      count = c->splittable > 0 ? std::min(c->splittable, std::max(1, limits.step_rows)) : c->rows;
    }
    picked.push_back({c->index, count});
    left -= c->fixed_rows + count;
  }
  return picked;
}

}  // namespace tandem
