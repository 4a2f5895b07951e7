#include "engine/decode/verification.h"

#include <utility>

namespace tandem {

void Drafts::add(In token, TicketId dist) {
  x.push_back(token);
  if (dist == 0) return;
  if (!q.valid()) {
    q.ticket = dist;
  } else {
    q.more.push_back(dist);
  }
}

Drafts forced_drafts(const std::vector<Token>& tokens) {
  Drafts drafts;
  for (const Token t : tokens) {
    drafts.add(token_in(t), 0);
    drafts.by.push_back({Source::kGrammar});
  }
  return drafts;
}

Task<Verified> verify_drafts(Gen g, Drafts drafts, Source drafter) {
  const Stage T = g.stage(Role::kLarge);
  // The device decides (sampling/accept.h). Match: x_i is accepted if p_i draws x_i. The draw
  // replaces the first rejected draft, and p_{gamma+1} draws after the last one. Ratio: x_i is
  // accepted with probability min(1, p_i(x_i) / q_i(x_i)). A draw from norm(max(0, p_i - q_i))
  // replaces the first rejected draft.
  Pass pass = g.catch_up(T);
  for (const In& x : drafts.x) pass.add.chain(x);
  Read read = g.draw(last_rows(drafts.x.size() + 1, pass.add.size()));
  read.match = !drafts.q.valid();
  read.against = drafts.q;
  read.round_start = static_cast<int>(g.seq().size());
  pass.reading(std::move(read));
  Readout r = co_await g.submit(std::move(pass));

  std::vector<Emitted> out;
  for (size_t i = 0; i < static_cast<size_t>(r.accepted); ++i) {
    const Provenance by = drafts.by.empty() ? Provenance{drafter} : drafts.by[i];
    out.push_back(g.emitted(r.row[i], by));
  }
  const bool rejected = r.accepted < drafts.size();
  out.push_back(g.emitted(r.row[static_cast<size_t>(r.accepted)],
                          {Source::kLarge, Source::kLarge, rejected}));
  const int64_t before = g.stats().small_tokens;
  const bool ended = g.emit(std::move(out));
  // Accepted drafts behind the end of the request do not count.
  g.count_verification(drafts.size(), g.stats().small_tokens - before);
  if (!ended) g.truncate(T.cache, static_cast<int>(g.seq().size()) - 1);
  co_return Verified{r.accepted, ended};
}

}  // namespace tandem
