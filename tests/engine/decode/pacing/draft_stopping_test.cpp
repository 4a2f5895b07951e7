#include "engine/decode/pacing/draft_stopping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace tandem {
namespace {

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

Places text_of(const Profile& p, uint64_t seed, int length) {
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
double fixed(const Places& text, Costs costs, int most, double sure) {
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

double best_fixed(const Places& text, Costs costs) {
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

void steer(DraftStopping& stopping, const Places& text, Costs costs, Counts* counts) {
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

constexpr Profile kProfiles[] = {
    {"as of code: sure nearly everywhere, and it knows where not", 0.85, 0.97, 0.1, 0.8, true},
    {"half of the places are hard, and it knows", 0.5, 0.97, 0.05, 0.6, true},
    {"right 9 times of 10, and sure all the time", 1, 0.9, 0, 0, false},
    {"right 7 times of 10, and sure all the time", 1, 0.7, 0, 0, false},
    {"right half of the time, and sure all the time", 1, 0.5, 0, 0, false},
    {"always right", 1, 1, 0, 0, true},
    {"never right, and sure", 1, 0, 0, 0, false},
    {"never right, and not sure", 0, 0, 0.05, 0.2, true},
};
constexpr Costs kCosts[] = {{0.27, 0.05}, {0.1, 0.05}, {0.6, 0.02}, {0.27, 0.4}, {1.2, 0.1}};

// Ten requests of 300 tokens, the first of which knows nothing.
constexpr int kRequests = 10, kLength = 300;

// A request may bar drafts that the small model is not sure of. Where it is never sure, its passes
// are in vain, and become rare.
TEST(DraftStopping, DraftsThatAreBarredAreNotAskedForAgainAndAgain) {
  auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(8, stats, By::kSmall);
  const Device device({0.3, 0.05});
  int passes = 0, late = 0;
  for (int round = 0; round < 600; ++round) {
    stopping.begin_round(device.round(600 - round));
    if (stopping.next(0) == DraftStopping::Next::kSmall) {
      stopping.observe_pass(1);
      EXPECT_FALSE(stopping.add_small(0.2F, /*least=*/0.5F));
      ++passes;
      if (round >= 300) ++late;
    }
    stopping.end_round(0);
  }
  EXPECT_GT(passes, 0);
  EXPECT_LT(late, 30);
}

// The best is chosen with hindsight, for each profile and each cost.
TEST(DraftStopping, IsNearlyAsFastAsTheBestFixedSettingForEachProfile) {
  for (const Profile& profile : kProfiles) {
    for (const Costs& costs : kCosts) {
      auto stats = std::make_shared<AcceptanceStats>();
      Counts counts;
      Places all;
      for (uint64_t request = 0; request < kRequests; ++request) {
        const Places text = text_of(profile, request, kLength);
        DraftStopping stopping(8, stats, By::kSmall);
        steer(stopping, text, costs, &counts);
        all.insert(all.end(), text.begin(), text.end());
      }
      // Where at most half of the places are easy and right, a bad start may switch the small model
      // off for long. It is then as fast as without drafts.
      const double plain =
          profile.easy * profile.easy_right <= 0.5 ? 1.01 * kRequests * kLength : 0;
      EXPECT_LT(counts.seconds, std::max(best_fixed(all, costs) / 0.92, plain))
          << profile.name << "; small " << costs.small << ", row " << costs.row;
    }
  }
}

TEST(DraftStopping, WhereDraftsFailItIsAtMostTwoPercentSlowerThanWithout) {
  for (const double small : {0.05, 0.27, 0.6, 1.5}) {
    auto stats = std::make_shared<AcceptanceStats>();
    Counts counts;
    for (uint64_t request = 0; request < kRequests; ++request) {
      DraftStopping stopping(8, stats, By::kSmall);
      steer(stopping, text_of(kProfiles[6], request, kLength), {small, 0.05}, &counts);
    }
    EXPECT_LT(counts.seconds, 1.02 * kRequests * kLength) << small;
  }
}

// One that learns alone has less time for it.
TEST(DraftStopping, ARequestAloneLosesLittleToo) {
  for (const Profile& profile : kProfiles) {
    const Places text = text_of(profile, 1, 600);
    Counts counts;
    DraftStopping stopping(8, nullptr, By::kSmall);
    steer(stopping, text, {0.27, 0.05}, &counts);
    EXPECT_LT(counts.seconds, best_fixed(text, {0.27, 0.05}) / 0.9) << profile.name;
  }
}

TEST(DraftStopping, FollowsTextsThatChange) {
  auto stats = std::make_shared<AcceptanceStats>();
  const Costs costs{0.27, 0.05};
  const auto run = [&](const Profile& profile, int requests) {
    Counts counts;
    for (int i = 0; i < requests; ++i) {
      DraftStopping stopping(8, stats, By::kSmall);
      steer(stopping, text_of(profile, static_cast<uint64_t>(i), kLength), costs, &counts);
    }
    return counts.seconds / (requests * kLength);
  };
  EXPECT_LT(run(kProfiles[6], 5), 1.03);
  EXPECT_LT(run(kProfiles[0], 12), 0.8) << "drafts are kept from here on";
  EXPECT_LT(run(kProfiles[6], 12), 1.06) << "and here no more";
}

// Costs change with the batch size: a draft costs less in a batch than alone.
TEST(DraftStopping, FollowsCostsThatChange) {
  auto stats = std::make_shared<AcceptanceStats>();
  const auto passes = [&](Costs costs) {
    Counts counts;
    for (uint64_t i = 0; i < 5; ++i) {
      DraftStopping stopping(8, stats, By::kSmall);
      steer(stopping, text_of(kProfiles[2], i, kLength), costs, &counts);
    }
    return static_cast<double>(counts.passes) / counts.rounds;
  };
  EXPECT_GT(passes({0.2, 0.02}), 2.5);
  EXPECT_LT(passes({0.3, 0.8}), 0.5);
  EXPECT_GT(passes({0.2, 0.02}), 0.5);
}

TEST(DraftStopping, CopiesAreTakenWhereTheyAreKept) {
  for (const bool good : {true, false}) {
    DraftStopping stopping(8, nullptr, By::kSmall);
    int copies = 0, small = 0;
    const Device device({0.3, 0.05});
    for (int round = 0; round < 200; ++round) {
      stopping.begin_round(device.round(1000));
      std::vector<bool> kept;
      for (;;) {
        const DraftStopping::Next next = stopping.next(3);
        if (next == DraftStopping::Next::kStop) break;
        const bool copy = next == DraftStopping::Next::kLookup;
        ++(copy ? copies : small);
        kept.push_back(copy ? good : round % 8 != 0);
        if (copy) {
          stopping.add_lookup(3);
        } else {
          stopping.observe_pass(1);
          if (stopping.add_small(0.9F)) continue;
          kept.pop_back();
          break;
        }
      }
      const auto failed = std::find(kept.begin(), kept.end(), false);
      stopping.end_round(static_cast<int>(failed - kept.begin()));
    }
    if (good) {
      EXPECT_GT(copies, 10 * small);
    } else {
      EXPECT_LT(copies, small / 4);
    }
  }
}

TEST(DraftStopping, LongMatchesDraftMore) {
  std::mt19937_64 rng(1);
  const Device device({0.3, 0.05});
  DraftStopping stopping(64, nullptr, By::kLookup);
  // By match: in the own text and in the history.
  const std::vector<std::pair<Matched, double>> matches = {
      {2, 0.5}, {40, 0.99}, {{4, true}, 0.3}, {{40, true}, 0.97}};
  std::vector<int> drafts(matches.size());
  for (int round = 0; round < 2000; ++round) {
    const size_t which = static_cast<size_t>(round) % matches.size();
    const auto& [by, right] = matches[which];
    stopping.begin_round(device.round(10'000));
    int made = 0, kept = 0;
    bool all = true;
    for (; stopping.next(by) == DraftStopping::Next::kLookup; ++made) {
      stopping.add_lookup(by);
      all = all && static_cast<double>(rng() >> 11) * 0x1p-53 < right;
      kept += all;
    }
    stopping.end_round(kept);
    if (round >= 1000) drafts[which] += made;
  }
  EXPECT_LT(drafts[0], 4 * 250);
  EXPECT_GT(drafts[1], 20 * 250);
  EXPECT_LT(drafts[2], 3 * 250);
  EXPECT_GT(drafts[3], 10 * 250);
}

TEST(DraftStopping, DroppedDraftsAreNotJudged) {
  const auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(64, stats, By::kLookup);
  const Device device({0.3, 0.05});
  stopping.begin_round(device.round(1000));
  for (int i = 0; i < 5; ++i) stopping.add_lookup(20);
  stopping.drop_to(2);
  stopping.end_round(2);
  const DraftAcceptance& seen = stats->drafts.acceptance;
  EXPECT_EQ(seen.observations(DraftAcceptance::lookup(20, false)), 1);
  EXPECT_EQ(seen.observations(DraftAcceptance::lookup(20, true)), 1);
}

// Before anything is known of its acceptance.
TEST(DraftStopping, BeginsWhereOneDraftPaysAndTwoWouldNot) {
  const Device device({0.44, 0.16});
  DraftStopping stopping(8, nullptr, By::kSmall);
  stopping.begin_round(device.round(kLength));
  EXPECT_TRUE(stopping.may_draft());
}

// Rounds alternate. In the first kind, a copy is accepted. In the second kind, the small model
// makes a draft: half of the first ten are rejected, and all later ones would be accepted. Without
// trials the estimate would remain too low for any draft.
TEST(DraftStopping, ABadStartIsCorrected) {
  const Device device({0.2, 0.05});
  DraftStopping stopping(8, nullptr, By::kSmall);
  int drafts = 0, late = 0;
  for (int round = 0; round < 400; ++round) {
    stopping.begin_round(device.round(2000));
    int accepted = 0;
    if (round % 2 == 0) {
      while (accepted < 3 && stopping.next(40) == DraftStopping::Next::kLookup) {
        stopping.add_lookup(40);
        ++accepted;
      }
    } else if (stopping.next(0) == DraftStopping::Next::kSmall) {
      stopping.observe_pass(1);
      if (stopping.add_small(0.8F)) accepted = ++drafts > 10 || drafts % 2 == 0;
      late += round >= 200;
    }
    stopping.end_round(accepted);
  }
  EXPECT_GT(late, 80);
}

TEST(DraftStopping, ForcedDraftsAreFollowedByOthersAndNotJudged) {
  const auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(64, stats, By::kSmall);
  const Device device({0.2, 0.05});
  RecentRounds before;
  for (const int forced : {0, 3, 3}) {
    before = stats->drafts.with_small;
    stopping.begin_round(device.round(1000));
    for (int i = 0; i < forced; ++i) stopping.add_forced();
    ASSERT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
    stopping.observe_pass(1 + forced);
    ASSERT_TRUE(stopping.add_small(0.995F));
    EXPECT_EQ(stopping.next(40), DraftStopping::Next::kLookup);
    stopping.add_lookup(40);
    stopping.end_round(forced + 2);
  }
  const DraftAcceptance& seen = stats->drafts.acceptance;
  EXPECT_EQ(seen.observations(DraftAcceptance::small(0.995F)), 3);
  EXPECT_EQ(seen.observations(DraftAcceptance::next(DraftAcceptance::kAfterAll)), 3);
  EXPECT_EQ(seen.observations(DraftAcceptance::lookup(40, false)), 3);
  const RecentRounds& rounds = stats->drafts.with_small;
  EXPECT_DOUBLE_EQ(rounds.drafts, 2 + RecentRounds::kMemory * before.drafts);
  EXPECT_DOUBLE_EQ(rounds.tokens, 3 + RecentRounds::kMemory * before.tokens);
}

// A prompt that the small model reads once.
TEST(DraftStopping, MissedTextIsNoCostOfARound) {
  const auto stats = std::make_shared<AcceptanceStats>();
  const Device device({0.2, 0.05});
  DraftStopping stopping(8, stats, By::kSmall);
  DraftStopping::Round round = device.round(kLength);
  round.behind = 150;
  stopping.begin_round(round);
  ASSERT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
  stopping.observe_pass(151);
  ASSERT_TRUE(stopping.add_small(0.99F));
  stopping.end_round(1);
  const RecentRounds& rounds = stats->drafts.with_small;
  EXPECT_LT(rounds.small_rows, 2 * rounds.small_passes);
}

// A copy that the large model rejects costs at most a few rows, also where its match is long.
TEST(DraftStopping, CopiesBecomeLongerWhileTheyAreAccepted) {
  DraftStopping stopping(64, nullptr, By::kLookup);
  const Device device({0.3, 0.01});
  const auto copied = [&](int accepted) {  // -1: all
    stopping.begin_round(device.round(10'000));
    int drafts = 0;
    for (; stopping.next(40) == DraftStopping::Next::kLookup; ++drafts) stopping.add_lookup(40);
    stopping.end_round(accepted < 0 ? drafts : std::min(accepted, drafts));
    return drafts;
  };
  EXPECT_EQ(copied(0), 4);
  EXPECT_EQ(copied(-1), 4);
  EXPECT_EQ(copied(-1), 8);
  EXPECT_EQ(copied(-1), 16);
  EXPECT_EQ(copied(12), 32);
  EXPECT_EQ(copied(-1), 24);
  EXPECT_EQ(copied(-1), 48);
  EXPECT_EQ(copied(-1), 64);
  EXPECT_EQ(copied(-1), 64);
  EXPECT_EQ(copied(0), 64);
  EXPECT_EQ(copied(-1), 32);
}

// Reading a copied text costs the small model more than its next drafts save.
TEST(DraftStopping, TheSmallModelWaitsForTheEndOfACopy) {
  const auto stats = std::make_shared<AcceptanceStats>();
  Device device({0.2, 0.01});
  device.small.observe(64, 3.2);
  DraftStopping stopping(64, stats, By::kSmall);
  const auto next = [&](int behind) {
    DraftStopping::Round round = device.round(10'000);
    round.behind = behind;
    stopping.begin_round(round);
    EXPECT_TRUE(stopping.may_draft());
    return stopping.next(0);
  };
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(next(0), DraftStopping::Next::kSmall);
    stopping.observe_pass(1);
    stopping.add_small(0.98F);
    stopping.end_round(i % 4 > 0 ? 1 : 0);
  }
  next(0);
  for (int i = 0; i < 40; ++i) stopping.add_lookup(40);
  stopping.end_round(40);
  stats->drafts.unspent = 0;  // no trials
  EXPECT_EQ(next(40), DraftStopping::Next::kStop);
  stopping.end_round(0);
  EXPECT_EQ(next(41), DraftStopping::Next::kSmall);
}

// After answers of copies, the small model does not read the next prompt.
TEST(DraftStopping, CopiesAreNoReasonToUseTheSmallModel) {
  for (const bool copied : {true, false}) {
    const auto stats = std::make_shared<AcceptanceStats>();
    stats->drafts.answer = 300;
    Device device({0.2, 0.01});
    device.small.observe(500, 25);
    const auto reads = [&](int prompt) {
      auto stopping = std::make_unique<DraftStopping>(64, stats, By::kSmall);
      DraftStopping::Round round = device.round(300);
      round.behind = prompt;
      stopping->begin_round(round);
      return stopping;
    };
    const auto first = reads(0);
    for (int i = 0; i < 40; ++i) {
      first->begin_round(device.round(300));
      for (int j = 0; copied && j < 20; ++j) first->add_lookup(40);
      if (!copied) {
        first->observe_pass(1);
        first->add_small(0.98F);
      }
      first->end_round(copied ? 20 : 1);
    }
    EXPECT_EQ(reads(500)->may_draft(), !copied);
  }
}

// Drafts seem to fail after accepted ones, and else not. A round without drafts belongs to neither.
TEST(DraftStopping, ARoundWithoutDraftsIsFollowedByOneWith) {
  const auto stats = std::make_shared<AcceptanceStats>();
  const Device device({0.2, 0.05});
  stats->drafts.unspent = 0;  // no trials
  stats->drafts.with_small = {10, 18, 10, 10, 10};
  for (int i = 0; i < 40; ++i) {
    DraftAcceptance& shared = stats->drafts.acceptance;
    shared.observe(DraftAcceptance::next(DraftAcceptance::kAfterAll), i % 8 == 0, 1);
    shared.observe(DraftAcceptance::next(DraftAcceptance::kAfterSome), i % 8 > 0, 1);
  }
  DraftStopping stopping(8, stats, By::kSmall);
  stopping.begin_round(device.round(1000));
  ASSERT_TRUE(stopping.may_draft());
  EXPECT_EQ(stopping.next(0), DraftStopping::Next::kStop);
  stopping.end_round(0);
  stopping.begin_round(device.round(1000));
  ASSERT_TRUE(stopping.may_draft());
  EXPECT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
}

// A pass of the small model lasts as long for one request as for two.
TEST(DraftStopping, DraftsAloneOrWithTheOthers) {
  const auto stats = std::make_shared<AcceptanceStats>();
  stats->drafts.unspent = 0;
  stats->drafts.with_small = {10, 17.5, 10, 10, 10};
  const Device device({0.45, 0.02});
  const auto begins = [&](DraftStopping* stopping, int remaining) {
    DraftStopping::Round round = device.round(remaining);
    round.large.sequences = round.small.sequences = stats->drafts.streams;
    stopping->begin_round(round);
    return stopping->may_draft();
  };
  DraftStopping one(8, stats, By::kSmall);
  EXPECT_TRUE(begins(&one, 1000));
  {
    DraftStopping other(8, stats, By::kSmall);
    EXPECT_FALSE(begins(&other, 0));
    EXPECT_FALSE(begins(&one, 1000)) << "the other one does not draft";
  }
  EXPECT_TRUE(begins(&one, 1000));
  DraftStopping other(8, stats, By::kSmall);
  EXPECT_TRUE(begins(&other, 1000));
  EXPECT_TRUE(begins(&one, 1000));
}

// With mask tokens, two drafts cost one pass.
TEST(DraftStopping, ExpectsDraftsOfMaskTokens) {
  const Device device({0.66, 0.05});
  const auto drafts = [&](By by) {
    const auto stats = std::make_shared<AcceptanceStats>();
    stats->drafts.unspent = 0;  // no trials
    DraftStopping stopping(8, stats, by);
    stopping.begin_round(device.round(kLength));
    return stopping.may_draft();
  };
  EXPECT_FALSE(drafts(By::kSmall));
  EXPECT_TRUE(drafts(By::kParallel));
}

// The rounds that were expected do not change with the result of the first one.
TEST(DraftStopping, TheFirstRoundCountsOnce) {
  const Device device({0.2, 0.05});
  std::vector<RecentRounds> after;
  for (const int accepted : {0, 1}) {
    const auto stats = std::make_shared<AcceptanceStats>();
    DraftStopping stopping(8, stats, By::kSmall);
    stopping.begin_round(device.round(kLength));
    ASSERT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
    stopping.observe_pass(1);
    ASSERT_TRUE(stopping.add_small(0.9F));
    stopping.end_round(accepted);
    after.push_back(stats->drafts.with_small);
  }
  EXPECT_DOUBLE_EQ(after[1].tokens - after[0].tokens, 1);
  EXPECT_DOUBLE_EQ(after[1].drafts, after[0].drafts);
}

// The first drafts are rejected, and all later ones would be accepted.
TEST(DraftStopping, AFewRejectionsAtTheStartDoNotEndTheUseOfTheSmallModel) {
  const Device device({0.3, 0.05});
  const auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(8, stats, By::kSmall);
  int off = 0;
  for (int round = 0; round < 40; ++round) {
    stopping.begin_round(device.round(2000));
    off += stopping.may_draft() ? 0 : 1;
    int drafts = 0;
    while (stopping.next(0) == DraftStopping::Next::kSmall) {
      stopping.observe_pass(1);
      if (!stopping.add_small(0.9F)) break;
      ++drafts;
    }
    stopping.end_round(round < 4 ? 0 : drafts);
  }
  EXPECT_EQ(off, 0);
  EXPECT_GT(stats->drafts.with_small.tokens / stats->drafts.with_small.rounds, 2);
}

// All drafts are rejected: the loss is bounded.
TEST(DraftStopping, ASmallModelThatIsNeverRightIsSwitchedOff) {
  const Device device({0.3, 0.05});
  const auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(8, stats, By::kSmall);
  int passes = 0;
  for (int round = 0; round < 400; ++round) {
    stopping.begin_round(device.round(2000));
    while (stopping.next(0) == DraftStopping::Next::kSmall) {
      stopping.observe_pass(1);
      ++passes;
      if (!stopping.add_small(0.9F)) break;
    }
    stopping.end_round(0);
  }
  EXPECT_LT(passes * 0.35, 0.06 * 400);  // the time of these passes and their rows
}

TEST(DraftStopping, OneShortAnswerDoesNotMakeAllOthersShort) {
  const auto stats = std::make_shared<AcceptanceStats>();
  const Device device({0.2, 0.05});
  const auto answer = [&](int tokens) {
    DraftStopping stopping(8, stats, By::kLookup);
    for (int i = 0; i < tokens; ++i) {
      stopping.begin_round(device.round(kLength));
      stopping.end_round(0);
    }
  };
  answer(4);
  EXPECT_GT(stats->drafts.answer, 50);
  for (int i = 0; i < 40; ++i) answer(4);
  EXPECT_NEAR(stats->drafts.answer, 4, 1);
}

// 40 questions for two tokens each are no reason to expect short answers of other requests.
TEST(DraftStopping, LimitsDoNotMakeAnswersShort) {
  const auto stats = std::make_shared<AcceptanceStats>();
  const Device device({0.2, 0.05});
  const auto ask = [&](int limit, int tokens) {
    DraftStopping stopping(8, stats, By::kLookup);
    for (int i = 0; i < tokens; ++i) {
      stopping.begin_round(device.round(limit - i));
      stopping.end_round(0);
    }
  };
  for (int i = 0; i < 40; ++i) ask(kLength, 100);
  for (int i = 0; i < 40; ++i) ask(2, 2);
  EXPECT_GE(stats->drafts.answer, 100);
  for (int i = 0; i < 1000; ++i) ask(100, 100);
  EXPECT_LE(stats->drafts.answer, 1024);
  for (int i = 0; i < 40; ++i) ask(kLength, 20);
  EXPECT_NEAR(stats->drafts.answer, 20, 6);
}

// Rounds with the small model are faster, but too few to pay for its reading. A trial that shows
// more than was expected is followed by others.
TEST(DraftStopping, ATrialOfAWholeAnswerCountsWhatItGains) {
  constexpr double kRead = 12;  // seconds
  for (const bool right : {true, false}) {
    const auto stats = std::make_shared<AcceptanceStats>();
    Device device({0.2, 0.02});
    device.small.observe(401, kRead + 0.2);
    stats->drafts.with_small = {20, 36, 20, 20, 20};
    stats->drafts.answer = 30;
    const auto begins = [&](DraftStopping* stopping, int behind) {
      DraftStopping::Round round = device.round(300);
      round.behind = behind;
      stopping->begin_round(round);
      return stopping->may_draft();
    };
    {
      stats->drafts.unspent = 3;
      DraftStopping none(8, stats, By::kSmall);
      EXPECT_FALSE(begins(&none, 400));
    }
    stats->drafts.unspent = 8;
    DraftStopping stopping(8, stats, By::kSmall);
    ASSERT_TRUE(begins(&stopping, 400));
    EXPECT_NEAR(stats->drafts.unspent, 8 - kRead, 0.5);
    for (int i = 0; i < 30 && stopping.may_draft(); ++i) {
      while (stopping.next(0) == DraftStopping::Next::kSmall) {
        stopping.observe_pass(1);
        if (!stopping.add_small(0.98F)) break;
      }
      stopping.end_round(right ? 3 : 0);
      begins(&stopping, 0);
    }
    EXPECT_EQ(stopping.may_draft(), right);
    EXPECT_EQ(stats->drafts.unspent > 15, right);
    EXPECT_LE(stats->drafts.unspent, 18);
  }
}

TEST(DraftStopping, OnlyLookupsAreLong) {
  DraftStopping stopping(64, nullptr, By::kSmall);
  const Device device({0.01, 0});
  for (const bool match : {true, false}) {
    int drafts = 0;
    for (int round = 0; round < 20; ++round) {
      stopping.begin_round(device.round(10'000));
      for (drafts = 0;; ++drafts) {
        const DraftStopping::Next next = stopping.next(match ? 40 : 0);
        if (next == DraftStopping::Next::kStop) break;
        if (next == DraftStopping::Next::kLookup) {
          stopping.add_lookup(40);
        } else {
          stopping.observe_pass(1);
          stopping.add_small(0.999F);
        }
      }
      stopping.end_round(drafts);
    }
    EXPECT_EQ(drafts, match ? 64 : DraftStopping::kMostOfSmall);
  }
}

// A small model that has all to catch up reads no prompt where its drafts do not pay.
TEST(DraftStopping, WhereDraftsDoNotPayTheNextRequestBeginsWithout) {
  auto stats = std::make_shared<AcceptanceStats>();
  Counts counts;
  {
    DraftStopping stopping(8, stats, By::kSmall);
    steer(stopping, text_of(kProfiles[6], 0, kLength), {0.6, 0.1}, &counts);
  }
  DraftStopping next(8, stats, By::kSmall);
  const Device device({0.6, 0.1});
  DraftStopping::Round round = device.round(kLength);
  round.behind = 10;
  next.begin_round(round);
  EXPECT_FALSE(next.may_draft());
  EXPECT_EQ(next.next(0), DraftStopping::Next::kStop);
}

TEST(DraftStopping, WhereNothingCostsTimeItDrafts) {
  DraftStopping stopping(8, nullptr, By::kSmall);
  Counts counts;
  steer(stopping, text_of(kProfiles[5], 0, 2000), {0, 0}, &counts);
  EXPECT_GT(counts.passes, 1500);
}

TEST(DraftStopping, NeverMoreThanItMay) {
  DraftStopping stopping(3, nullptr, By::kSmall);
  const Device device({0.01, 0.01});
  for (int round = 0; round < 100; ++round) {
    stopping.begin_round(device.round(1000));
    int drafts = 0;
    while (stopping.next(0) == DraftStopping::Next::kSmall) {
      stopping.observe_pass(1);
      drafts += stopping.add_small(0.99F);
    }
    EXPECT_EQ(drafts, 3);
    stopping.end_round(drafts);
  }
}

// A small model with a mask, which predicts `predicted` of its tokens, with confidence 0.6;
// a verified parallel draft is accepted as often as the small model's own token would be.
struct Masked {
  double seconds = 0;
  int tokens = 0, guesses = 0, judged_guesses = 0;
};

Masked steer_masked(double predicted, Costs costs, bool masks, int rounds) {
  std::mt19937_64 rng(5);
  const auto chance = [&](double p) { return static_cast<double>(rng() >> 11) * 0x1p-53 < p; };
  DraftStopping stopping(12, nullptr, masks ? By::kParallel : By::kSmall);
  const Device device(costs);
  Masked m;
  for (int round = 0; round < rounds; ++round) {
    stopping.begin_round(device.round(100000));
    std::vector<bool> kept;
    bool on = true, guess = false, right = false;
    while (on && stopping.next(0, guess ? 0.6F : 0) == DraftStopping::Next::kSmall) {
      m.seconds += costs.small;
      stopping.observe_pass(1);
      for (bool says = true; says && on; says = std::exchange(right, false)) {
        on = stopping.add_small(0.9F);
        if (on) kept.push_back(chance(0.9));
      }
      guess = masks;
      right = masks && chance(predicted);
      m.guesses += masks;
    }
    if (on && guess && stopping.add_parallel(0.6F)) {
      ++m.judged_guesses;
      kept.push_back(right && chance(0.9));
    }
    const auto accepted =
        static_cast<int>(std::find(kept.begin(), kept.end(), false) - kept.begin());
    const auto rows = static_cast<int>(kept.size()) + 1;
    const double pass = 1 + costs.row * (rows - 1);
    m.seconds += pass;
    stopping.end_round(accepted);
    m.tokens += accepted + 1;
  }
  return m;
}

TEST(DraftStopping, ParallelDraftsSavePasses) {
  const auto pace = [](double predicted, Costs costs, bool masks) {
    const Masked m = steer_masked(predicted, costs, masks, 3000);
    return m.tokens / m.seconds;
  };
  for (const Costs costs : {Costs{0.3, 0.03}, Costs{0.15, 0.05}, Costs{0.5, 0.02}}) {
    const double without = pace(0, costs, false);
    EXPECT_GT(pace(0.6, costs, true), 1.1 * without) << costs.small;
    EXPECT_GT(pace(0.9, costs, true), 1.25 * without) << costs.small;
    EXPECT_GT(pace(0, costs, true), 0.95 * without) << costs.small;
  }
}

// As drafts that nothing was paid for yet, but their rows.
TEST(DraftStopping, ParallelDraftsAreVerifiedIfWorthTheirRows) {
  const auto share = [](double predicted, double row) {
    const Masked m = steer_masked(predicted, {0.3, row}, true, 1000);
    return static_cast<double>(m.judged_guesses) / 1000;
  };
  EXPECT_GT(share(0.6, 0.03), 0.8);
  EXPECT_LT(share(0, 0.03), 0.2);
  EXPECT_LT(share(0.3, 0.6), 0.2);
}

TEST(DraftStopping, ParallelDraftsBelowTheRequestsProbabilityAreNotVerified) {
  DraftStopping stopping(8, nullptr, By::kParallel);
  const Device device({0.3, 0.03});
  stopping.begin_round(device.round(100));
  EXPECT_FALSE(stopping.add_parallel(0.4F, 0.5F));
  EXPECT_TRUE(stopping.add_parallel(0.6F, 0.5F));
}

}  // namespace
}  // namespace tandem
