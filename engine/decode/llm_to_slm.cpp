#include "engine/decode/llm_to_slm.h"

#include <utility>

namespace tandem {
namespace {

Task<void> small_generates(Gen g) {
  const Stage L = g.stage(Role::kLarge), S = g.stage(Role::kSmall);
  for (;;) {
    co_await g.round({{S, g.missing(S)}});
    Pass p = g.catch_up(S);  // at first computes H and Z of the prompt
    p.reading(g.draw(last_rows(1, p.add.size())));
    Readout r = co_await g.submit(std::move(p));
    g.truncate(L.cache, 0);  // not needed after H
    if (g.emit(g.emitted(r.row[0], {Source::kSmall, Source::kSmall}))) co_return;
  }
}

}  // namespace

Task<void> llm_to_slm(Gen g, LlmToSlmParams a) {
  if (!a.speculative) return small_generates(g);
  // The large model's pass over the prompt leaves H, too, so each model computes the prompt once.
  a.reads_prompt_at_once = true;
  return speculative(g, std::move(a));
}

}  // namespace tandem
