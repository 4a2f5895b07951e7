#include "engine/decode/judge.h"

#include <algorithm>
#include <cmath>
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

Task<Judged> judge(Gen g, Drafts drafts, Source drafter) {
  const Stage T = g.stage(Role::kLarge);
  // Judged on the device (sampling/accept.h). Exactly: x_i stays if p_i's own draw is x_i; that
  // draw stands in place of the first that does not, and p_{gamma+1} draws after the last. By
  // ratio: x_i stays with probability min(1, p_i(x_i) / q_i(x_i)); in place of the first that does
  // not, a draw from norm(max(0, p_i - q_i)).
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
  // Of accepted drafts those count that are output: nothing does behind an end.
  g.stats().count_verification(drafts.size(), g.stats().small_tokens - before);
  if (!ended) g.truncate(T.cache, static_cast<int>(g.seq().size()) - 1);
  co_return Judged{r.accepted, ended};
}

int Pace::gamma() const {
  if (!adaptive_) return most_;
  return std::clamp(1 + static_cast<int>(std::lround(mean_)), 1, most_);
}

void Pace::saw(int drafted, int accepted) {
  // A run that something else cut short, and that was good as far as it went, tells nothing.
  if (accepted == drafted && drafted < gamma()) return;
  mean_ += kWeight * (accepted - mean_);
}

}  // namespace tandem
