#include "engine/decode/embed.h"

#include <utility>

namespace tandem {

Task<void> embed(Gen g, Pooling pooling, See see, std::vector<double>* out) {
  const Stage L = g.stage(Role::kLarge);
  const auto n = static_cast<int>(g.seq().size());
  const int begin = pooling == Pooling::kLast ? n - 1 : 0;
  const int end = pooling == Pooling::kFirst ? 1 : n;
  co_await g.round({{L, g.missing(L), begin}});
  Pass p = g.catch_up(L);
  p.see = see;
  const int first = n - static_cast<int>(p.add.size());
  Read read;
  read.pool = true;
  for (int i = begin; i < end; ++i) read.rows.push_back(i - first);
  p.reading(std::move(read));
  Readout r = co_await g.submit(std::move(p));
  *out = std::move(r.pooled);
  for (double& x : *out) x /= end - begin;
}

}  // namespace tandem
