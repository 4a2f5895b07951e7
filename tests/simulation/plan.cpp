#include "tests/simulation/plan.h"

namespace tandem::simulation {
namespace {

constexpr int kVocab = 12;  // small, so that guesses come true now and then
constexpr int kMaxPrompt = 20;
constexpr int kMaxNew = 12;
// The most rows that one sequence may need at once: a tree of 2 depths, 2 ranks and all its masks.
constexpr int kMaxRows = kMaxPrompt + kMaxNew + 4 + 2 * 5;
constexpr int kFaultMicros = 20'000;

Request make_request(Random& r, bool quiet) {
  Request q;
  q.kind = static_cast<Kind>(r.below(5));
  q.prompt.resize(static_cast<size_t>(r.between(1, kMaxPrompt)));
  for (Token& t : q.prompt) t = r.below(kVocab);
  q.max_new_tokens = r.between(1, kMaxNew);
  if (r.one_in(2)) q.eos = {r.below(kVocab)};
  // Only these two give autoregressive decoding's own tokens when sampled.
  if ((q.kind == Kind::kAr || q.kind == Kind::kTree) && r.one_in(2)) {
    q.warp.temperature = 0.5F + static_cast<float>(r.below(100)) / 100;
    if (r.one_in(2)) q.warp.top_p = 0.9F;
    q.warp.seed = r.next();
  }
  q.priority = r.below(3);
  q.arrival = TimePoint(r.micros(kFaultMicros));
  if (quiet) return q;
  const auto later = [&] { return q.arrival + r.micros(kFaultMicros); };
  if (r.one_in(6)) q.deadline = later();
  if (r.one_in(6)) q.time_limit = later();
  if (r.one_in(5)) q.cancel = later();
  q.cancel_ok = r.one_in(2);
  return q;
}

}  // namespace

Plan make_plan(uint64_t seed) {
  Random r(seed);
  Plan p;
  const int page_rows = r.between(1, 5);
  const int alone = (kMaxRows + page_rows - 1) / page_rows;
  for (int m = 0; m < 2; ++m) {
    p.model[m].vocab_size = kVocab;
    p.model[m].layers = m == 0 ? 3 : 2;
    p.model[m].seed = static_cast<uint64_t>(r.between(1, 3));  // at times the small one is as large
    p.model[m].pass_seconds = 1e-6 * r.between(20, 400);
    p.model[m].row_seconds = 1e-6 * r.between(0, 20);
    const int pages = alone * (r.one_in(4) ? 4 : 1) + r.below(alone);
    p.pool[m] = {page_rows, pages, pages};
  }
  p.small_device = r.below(2);
  p.limits.step_rows = r.between(1, 40);
  p.limits.prefill_chunk_rows = r.between(1, 20);
  p.limits.max_running = r.between(1, 10);
  p.limits.max_waiting = r.one_in(4) ? 3 : 100;
  if (r.one_in(8)) p.limits.queue_seconds = 0.003;
  p.shuffle = r.next();
  p.quiet = TimePoint(std::chrono::microseconds(kFaultMicros));
  p.fault_every = r.one_in(4) ? 0 : r.between(5, 60);
  for (int i = 0, n = r.between(8, 12); i < n; ++i) p.requests.push_back(make_request(r, false));
  for (int i = 0; i < 2; ++i) {
    p.requests.push_back(make_request(r, true));
    p.requests.back().arrival = p.quiet;
  }
  return p;
}

}  // namespace tandem::simulation
