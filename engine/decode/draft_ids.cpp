#include "engine/decode/draft_ids.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tandem {

int draft_ids(const Warp& warp, int draft_vocabulary) {
  if (draft_vocabulary == 0) return warp.vocab;
  size_t banned = 0;
  if (const Processors* p = warp.processors.get()) banned = p->bias.size() + p->ends.size();
  const int ids = std::max(draft_vocabulary, static_cast<int>(banned) + 1);
  return warp.vocab > 0 ? std::min(warp.vocab, ids) : ids;
}

DraftWarp::DraftWarp(const Warp& warp, int draft_vocabulary, bool text_ids)
    : warp_(warp), end_(warp.vocab), text_ids_(text_ids && draft_vocabulary > 0) {
  warp_.vocab = draft_ids(warp, draft_vocabulary);
}

void DraftWarp::begin_at(int first) {
  if (!warp_.processors) return;
  Processors processors = *warp_.processors;
  processors.prompt_tokens -= first;
  warp_.processors = std::make_shared<const Processors>(std::move(processors));
}

const Warp& DraftWarp::behind(const std::vector<Token>& text) {
  if (!text_ids_) return warp_;
  bool added = false;
  for (; read_ < text.size(); ++read_) {
    const Token id = text[read_];
    if (id < warp_.vocab || (end_ > 0 && id >= end_)) continue;
    const auto known = std::ranges::find(recent_, id);
    if (known != recent_.end()) {
      recent_.erase(known);
    } else {
      added = true;
      if (recent_.size() == kMost) recent_.erase(recent_.begin());
    }
    recent_.push_back(id);
  }
  if (added) {
    std::vector<Token> ids = recent_;
    std::ranges::sort(ids);
    warp_.more_ids = std::make_shared<const std::vector<Token>>(std::move(ids));
  }
  return warp_;
}

}  // namespace tandem
