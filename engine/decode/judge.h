// What methods share that draft a run of tokens and have the target judge them all in one pass.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/base/outcome.h"
#include "engine/decode/gen.h"

namespace tandem {

// x_1 .. x_gamma and, where the ratio rule is to judge them, the distributions q_1 .. q_gamma that
// they were drawn from.
struct Drafts {
  std::vector<In> x;
  DistRef q;
  std::vector<Provenance> by;  // what proposed each of them; empty: judge()'s drafter all

  int size() const { return static_cast<int>(x.size()); }
  void add(In token, TicketId dist);  // dist: 0 where none is kept
};

struct Judged {
  int accepted = 0;    // of the drafts
  bool ended = false;  // the request has
};

// p_1 .. p_{gamma+1} in one pass of Role::kLarge. Emits the drafts that stay and a token of the
// target's own, and leaves in its cache the rows of these alone. `drafter`: what proposed them.
// With drafts.q the ratio rule says which stay; without, those that are the target's own draws.
// REQUIRES: a round that holds the drafts' rows.
Task<Judged> judge(Gen g, Drafts drafts, Source drafter);

// gamma: as many as there may be, or following the accept lengths: 1 + their moving average,
// between 1 and `most`, where it begins. An accept length enters with kWeight, unless the run was
// cut short (by a threshold, max_new_tokens, a stop, a lookup that finds less) and wholly accepted.
class Pace {
 public:
  static constexpr double kWeight = 0.25;

  Pace(int most, bool adaptive)
      : most_(most), adaptive_(adaptive), mean_(static_cast<double>(most) - 1) {}

  int gamma() const;
  void saw(int drafted, int accepted);

 private:
  const int most_;
  const bool adaptive_;
  double mean_;
};

}  // namespace tandem
