#include "engine/decode/autoregressive.h"

namespace tandem {

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

}  // namespace tandem
