#include "engine/backend/torch/answer_cache.h"

#include <algorithm>

#include "engine/backend/torch/model/buffers.h"

namespace tandem {

AnswerCache::AnswerCache(Queue& queue, at::Device device)
    : answers_(empty_on(&queue, {kNowhere + 1, static_cast<int64_t>(sizeof(RowAnswer))},
                        at::TensorOptions().dtype(at::kByte).device(device))) {}

bool AnswerCache::caches(const Work& work, const Work::Output& out) {
  const Read& read = work.pass->read[static_cast<size_t>(out.read)];
  return work.pass->share && read.uses_head() && !read.judges();
}

AnswerCache::Batch AnswerCache::begin(int reads) {
  return {std::vector<int64_t>(static_cast<size_t>(reads), kNowhere), {}};
}

void AnswerCache::add(Batch& batch, int i, const Work& work, const Work::Output& out, int vocab) {
  const Read& read = work.pass->read[static_cast<size_t>(out.read)];
  // Batches end in order, so a place is reused only after its batch has ended.
  const int64_t place = next_++ % kNowhere;
  batch.places[static_cast<size_t>(i)] = place;
  batch.names.emplace_back(work.ticket, out.out);
  entries_[batch.names.back()] = {static_cast<int32_t>(place), read.warp.greedy(), read.draw, vocab,
                                  read.top};
}

void AnswerCache::forget(const Batch& batch) {
  for (const auto& name : batch.names) entries_.erase(name);
}

std::optional<ChosenToken> AnswerCache::find(const In& in, int vocab) const {
  const auto it = entries_.find({in.ref.ticket, in.ref.out});
  if (it == entries_.end() || it->second.vocab > vocab) return std::nullopt;
  const Entry& entry = it->second;
  if (in.id >= 0) {
    if (in.id >= std::min(entry.top, entry.vocab)) return std::nullopt;
    return ChosenToken{entry.place, in.id};
  }
  if (!entry.draws) return std::nullopt;
  return ChosenToken{entry.place, entry.greedy ? ChosenToken::kArgmax : ChosenToken::kDrawn};
}

}  // namespace tandem
