// A device and texts of a pair of models, for tests of draft stopping.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "engine/decode/pacing/draft_stopping.h"

namespace tandem::simulated {

// A text as a pair of models sees it: at each position the small model's confidence, and whether
// its draft is the large one's token.
struct Place {
  float sure;
  bool right;
};
using Places = std::vector<Place>;

// `easy` of the positions are so (confidence 0.98, right `easy_right` of the time), at the others
// the confidence is spread evenly over [low, high] and says how often the draft is right; or it is
// 0.98 too, if the small model does not know what it does not know.
struct Profile {
  const char* name;
  double easy, easy_right, low, high;
  bool knows;
};

inline Places text_of(const Profile& p, uint64_t seed, int length) {
  std::mt19937_64 rng(seed);
  const auto uniform = [&] { return static_cast<double>(rng() >> 11) * 0x1p-53; };
  Places text;
  for (int i = 0; i < length; ++i) {
    const bool easy = uniform() < p.easy;
    const double right = easy ? p.easy_right : p.low + (p.high - p.low) * uniform();
    text.push_back({static_cast<float>(easy || !p.knows ? 0.98 : right), uniform() < right});
  }
  return text;
}

// A pass of the large model takes 1 and `row` for each row after the first.
struct Costs {
  double small, row;
};

// A device whose batches have been measured.
struct Device {
  explicit Device(Costs costs) {
    for (int rows = 1; rows <= 16; ++rows) {
      large.observe(rows, 1 + costs.row * (rows - 1));
      small.observe(rows, costs.small);
    }
  }
  DraftStopping::Round round(int remaining) const {
    return {{1, &large}, {1, &small}, 0, remaining};
  }

  BatchTime large, small;
};

using By = DraftStopping::By;

// Seconds for the text with up to `most` drafts a round, as long as the small model is this sure.
inline double fixed(const Places& text, Costs costs, int most, double sure) {
  double seconds = 0;
  for (size_t at = 0; at < text.size();) {
    size_t kept = 0;
    int drafts = 0;
    seconds += 1;
    while (drafts < most && at + static_cast<size_t>(drafts) < text.size()) {
      seconds += costs.small;
      const Place& place = text[at + static_cast<size_t>(drafts)];
      if (place.sure < sure) break;
      seconds += costs.row;
      kept += kept == static_cast<size_t>(drafts) && place.right;
      ++drafts;
    }
    at += kept + 1;
  }
  return seconds;
}

inline double best_fixed(const Places& text, Costs costs) {
  double best = static_cast<double>(text.size());  // autoregressive decoding
  for (int most = 1; most <= 8; ++most) {
    for (const double sure : {0.0, 0.3, 0.5, 0.7, 0.9}) {
      best = std::min(best, fixed(text, costs, most, sure));
    }
  }
  return best;
}

struct Counts {
  double seconds = 0;
  int passes = 0, rounds = 0;
};

inline void steer(DraftStopping& stopping, const Places& text, Costs costs, Counts* counts) {
  const Device device(costs);
  for (size_t at = 0; at < text.size(); ++counts->rounds) {
    stopping.begin_round(device.round(static_cast<int>(text.size() - at)));
    std::vector<Place> drafts;
    while (at + drafts.size() < text.size() && stopping.next(0) == DraftStopping::Next::kSmall) {
      counts->seconds += costs.small;
      ++counts->passes;
      const Place& place = text[at + drafts.size()];
      stopping.observe_pass(1);
      if (!stopping.add_small(place.sure)) break;
      drafts.push_back(place);
    }
    size_t kept = 0;
    while (kept < drafts.size() && drafts[kept].right) ++kept;
    const double pass = 1 + costs.row * static_cast<double>(drafts.size());
    counts->seconds += pass;
    stopping.end_round(static_cast<int>(kept));
    at += kept + 1;
  }
}

inline constexpr Profile kProfiles[] = {
    {"as of code: sure nearly everywhere, and it knows where not", 0.85, 0.97, 0.1, 0.8, true},
    {"half of the places are hard, and it knows", 0.5, 0.97, 0.05, 0.6, true},
    {"right 9 times of 10, and sure all the time", 1, 0.9, 0, 0, false},
    {"right 7 times of 10, and sure all the time", 1, 0.7, 0, 0, false},
    {"right half of the time, and sure all the time", 1, 0.5, 0, 0, false},
    {"always right", 1, 1, 0, 0, true},
    {"never right, and sure", 1, 0, 0, 0, false},
    {"never right, and not sure", 0, 0, 0.05, 0.2, true},
};
inline constexpr Costs kCosts[] = {{0.27, 0.05}, {0.1, 0.05}, {0.6, 0.02}, {0.27, 0.4}, {1.2, 0.1}};

inline constexpr int kLength = 300;  // tokens of a request

}  // namespace tandem::simulated
