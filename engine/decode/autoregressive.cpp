#include "engine/decode/autoregressive.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tandem {
namespace {

// With others, a round's end would cost a request a place in a batch. The host computes the tokens
// that a constraint allows.
int tokens_of_round(Gen g, Stage large, int most) {
  const Processors* const processors = g.warp().processors.get();
  const bool constrained = processors != nullptr && processors->constraint != nullptr;
  if (constrained || g.load(large).sequences > 1) return 1;
  return std::min(most, g.remaining());
}

Ticket draw_last(Gen g, Pass p, bool share) {
  p.reading(g.draw(last_rows(1, p.add.size())));
  p.share = share;
  return g.submit(std::move(p));
}

}  // namespace

Task<void> autoregressive(Gen g) {
  const Stage L = g.stage(Role::kLarge);
  for (;;) {
    co_await g.round({{L, g.missing(L)}});
    Pass p = g.catch_up(L);  // the prompt, one token, or preempted rows
    p.reading(g.draw(last_rows(1, p.add.size())));
    Readout r = co_await g.submit(std::move(p));
    if (g.emit(g.emitted(r.row[0]))) co_return;
  }
}

Task<void> autoregressive_ahead(Gen g, int most) {
  const Stage L = g.stage(Role::kLarge);
  for (;;) {
    const int tokens = tokens_of_round(g, L, most);
    co_await g.round({{L, g.missing(L) + tokens - 1}});
    Ticket pass = draw_last(g, g.catch_up(L), /*share=*/tokens > 1);
    for (int left = tokens - 1; left >= 0; --left) {
      std::optional<Ticket> next;
      if (left > 0) {
        Pass p;
        p.stage = L;
        p.add.chain(pass.chosen(0));
        next = draw_last(g, std::move(p), /*share=*/left > 1);
      }
      const Readout r = co_await pass;
      if (g.emit(g.emitted(r.row[0]))) co_return;
      if (next) pass = *std::move(next);
    }
  }
}

}  // namespace tandem
