#include "engine/sched/batcher.h"

#include <algorithm>
#include <tuple>

#include "engine/base/mutation.h"

namespace tandem {
namespace {

ModelId model_in_turn(std::span<const Candidate> candidates, ModelId last, bool drafts_first) {
  drafts_first = drafts_first && std::ranges::any_of(candidates, &Candidate::drafts);
  ModelId next, first;
  for (const Candidate& c : candidates) {
    if (drafts_first && !c.drafts) continue;
    if (!first.valid() || c.model < first) first = c.model;
    if (c.model > last && (!next.valid() || c.model < next)) next = c.model;
  }
  return next.valid() ? next : first;
}

struct Queued {
  const Candidate* candidate;
  double served;  // after earlier passes of the same client in this batch

  auto key() const { return std::tuple(-candidate->priority, served, candidate->order); }
  friend bool operator<(const Queued& a, const Queued& b) { return a.key() < b.key(); }
};

bool is_prefill(const Candidate& c, const BatchLimits& limits) {
  return c.splittable > 0 && c.total() > limits.chunk_rows / 4;
}

// The common case needs no order: decodes of one model that all fit.
bool all_fit(std::span<const Candidate> candidates, ModelId model, const BatchLimits& limits) {
  int left = limits.step_rows;
  if (static_cast<int>(candidates.size()) > limits.works) return false;
  for (const Candidate& c : candidates) {
    left -= c.total();
    if (left < 0 || c.model != model || is_prefill(c, limits)) return false;
  }
  return true;
}

std::vector<Queued> queue_of(std::span<const Candidate> candidates, ModelId model) {
  std::vector<Queued> line;
  line.reserve(candidates.size());
  for (const Candidate& c : candidates) {
    if (c.model == model) line.push_back({&c, c.served});
  }
  const auto same = [](const Candidate& a, const Candidate& b) {
    return a.priority == b.priority && a.client == b.client;
  };
  std::sort(line.begin(), line.end(), [](const Queued& a, const Queued& b) {
    return std::tuple(a.candidate->priority, a.candidate->client, a.candidate->order) <
           std::tuple(b.candidate->priority, b.candidate->client, b.candidate->order);
  });
  for (size_t i = 1; i < line.size(); ++i) {
    const Queued& before = line[i - 1];
    if (!same(*before.candidate, *line[i].candidate)) continue;
    line[i].served = before.served + before.candidate->cost;
  }
  std::sort(line.begin(), line.end());
  return line;
}

}  // namespace

std::vector<Picked> pick_batch(std::span<const Candidate> candidates, ModelId last,
                               const BatchLimits& limits) {
  std::vector<Picked> picked;
  if (candidates.empty()) return picked;
  const ModelId model = model_in_turn(candidates, last, limits.drafts_first);
  if (all_fit(candidates, model, limits)) {
    picked.reserve(candidates.size());
    for (const Candidate& c : candidates) picked.push_back({c.index, c.rows});
    return picked;
  }
  std::vector<Queued> decodes = queue_of(candidates, model), prefills;
  std::erase_if(decodes, [&](const Queued& c) {
    const bool prefill = is_prefill(*c.candidate, limits);
    if (prefill) prefills.push_back(c);
    return prefill;
  });
  picked.reserve(decodes.size() + prefills.size());

  int left = limits.step_rows;
  int works = limits.works;
  int for_prefill = 0;
  if (!prefills.empty()) {
    for_prefill = std::max(limits.step_rows / 4, prefills.front().candidate->fixed_rows + 1);
    --works;
  }
  for (const Queued& next : decodes) {
    const Candidate* const c = next.candidate;
    // The first pass runs whatever its size, so that it always makes progress.
    const bool first = picked.empty() && (prefills.empty() || next < prefills.front());
    const bool fits = c->total() <= left - for_prefill && static_cast<int>(picked.size()) < works;
    if (!first && !fits) continue;
    picked.push_back({c->index, c->rows});
    left -= c->total();
  }
  if (mutated(Mutation::kStarvePrefill) && !picked.empty()) return picked;
  for (const Queued& next : prefills) {
    const Candidate* const c = next.candidate;
    if (static_cast<int>(picked.size()) >= limits.works) break;
    int count = std::min({c->rows, limits.chunk_rows, left - c->fixed_rows});
    if (c->rows > count) count = std::min(count, c->splittable);
    if (count < c->rows && count <= 0) {
      // It does not fit or cannot be divided: runs whole, if the batch is empty.
      if (!picked.empty()) continue;
      count = c->splittable > 0 ? std::min(c->splittable, std::max(1, limits.step_rows)) : c->rows;
    }
    picked.push_back({c->index, count});
    left -= c->fixed_rows + count;
  }
  return picked;
}

}  // namespace tandem
