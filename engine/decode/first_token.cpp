#include "engine/decode/first_token.h"

#include <algorithm>

namespace tandem {

bool drafts_can_come_first(Gen g, std::span<const Stage> stages) {
  constexpr int kMostRows = 8;
  return std::ranges::all_of(stages, [&](Stage s) {
    const int cached = g.cached(s);
    return cached > 0 && g.missing(s) - cached <= kMostRows;
  });
}

Task<bool> first_token(Gen g, std::vector<Stage> others) {
  const Stage L = g.stage(Role::kLarge);
  std::erase_if(others, [&](Stage s) { return s.cache == L.cache; });  // early exit
  if (g.remaining() == 1) others.clear();
  Needs needs{{L, g.missing(L)}};
  for (const Stage s : others) needs.push_back({s, g.missing(s)});
  co_await g.round(std::move(needs));
  Pass prompt = g.catch_up(L);
  prompt.reading(g.draw(last_rows(1, prompt.add.size())));
  Ticket prefill = g.submit(std::move(prompt));
  for (const Stage s : others) g.submit(g.catch_up(s));  // not awaited
  Readout r = co_await prefill;
  co_return g.emit(g.emitted(r.row[0]));
}

}  // namespace tandem
