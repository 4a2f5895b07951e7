#include "engine/decode/score.h"

namespace tandem {

Task<void> score(Gen g, int begin, int top, std::vector<Scored>* out) {
  const Stage L = g.stage(Role::kLarge);
  const auto n = static_cast<int>(g.seq().size());
  co_await g.round({{L, g.missing(L), begin - 1}});
  Pass p = g.catch_up(L);
  const int first = n - static_cast<int>(p.add.size());  // earlier rows are cached
  Read read;
  read.warp.vocab = g.warp().vocab;
  read.top = top;
  read.logprob = top > 0;
  for (int i = begin; i < n; ++i) {  // row i - 1 predicts token i
    read.rows.push_back(i - 1 - first);
    read.score.push_back(g.seq()[static_cast<size_t>(i)]);
  }
  p.reading(std::move(read));
  Readout r = co_await g.submit(std::move(p));
  out->clear();
  for (const Out& o : r.row) out->push_back({-o.nll, {o.top.begin(), o.top.end()}});
}

}  // namespace tandem
