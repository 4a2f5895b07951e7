#include <gtest/gtest.h>

#include <memory>

#include "engine/decode/pacing/draft_stopping.h"
#include "tests/engine/decode/pacing/simulated_drafts.h"

namespace tandem::simulated {
namespace {

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

// A pass of the small model lasts as long for one request as for two.
TEST(DraftStopping, DraftsAloneOrWithTheOthers) {
  const auto stats = std::make_shared<AcceptanceStats>();
  stats->drafts.unspent = 0;
  stats->drafts.with_small = {40, 70, 40, 40, 40};
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
  for (int round = 1; round < DraftStats::kPeak; ++round) {
    EXPECT_FALSE(begins(&one, 1000)) << "the other client may send its next request";
  }
  EXPECT_TRUE(begins(&one, 1000));
  DraftStopping other(8, stats, By::kSmall);
  EXPECT_TRUE(begins(&other, 1000));
  EXPECT_TRUE(begins(&one, 1000));
}

// While it is unknown what the small model is worth, each other request would read its prompt for
// nothing.
TEST(DraftStopping, OneOfSeveralRequestsShowsWhatTheSmallModelIsWorth) {
  const auto stats = std::make_shared<AcceptanceStats>();
  const Device device({0.1, 0.02});
  DraftStopping one(8, stats, By::kSmall), other(8, stats, By::kSmall);
  const auto begins = [&](DraftStopping* stopping) {
    DraftStopping::Round round = device.round(1000);
    round.large.sequences = round.small.sequences = 2;
    stopping->begin_round(round);
    return stopping->may_draft();
  };
  int rounds = 0;
  for (; rounds < 100; ++rounds) {
    ASSERT_TRUE(begins(&one));
    while (one.next(0) == DraftStopping::Next::kSmall) {
      one.observe_pass(1);
      if (!one.add_small(0.9F)) break;
    }
    one.end_round(2);
    if (begins(&other)) break;
    other.end_round(0);
  }
  EXPECT_GT(rounds, 4);
  EXPECT_LT(rounds, 40);
}

// A trial of another request makes what is known count less.
TEST(DraftStopping, RequestsThatUseTheSmallModelGoOnWhenLittleIsKnown) {
  const auto stats = std::make_shared<AcceptanceStats>();
  stats->drafts.with_small = {40, 120, 80, 80, 80};
  const Device device({0.1, 0.02});
  DraftStopping one(8, stats, By::kSmall), other(8, stats, By::kSmall);
  DraftStopping::Round round = device.round(1000);
  round.large.sequences = round.small.sequences = 2;
  for (int i = 0; i < 2; ++i) {
    one.begin_round(round);
    other.begin_round(round);
    EXPECT_TRUE(one.may_draft() && other.may_draft()) << i;
    stats->drafts.with_small.limit(8);
  }
}

// A pass in a batch of its own costs more than half of a batch of two.
TEST(DraftStopping, LearnsHowManyPassesShareABatch) {
  const Device device({0.6, 0.02});
  const auto drafts = [&](int works) {
    const auto stats = std::make_shared<AcceptanceStats>();
    stats->drafts.with_small = {40, 80, 40, 40, 40};
    stats->drafts.unspent = 0;
    DraftStopping one(8, stats, By::kSmall), other(8, stats, By::kSmall);
    int rounds = 0;
    for (int i = 0; i < 200; ++i) {
      for (DraftStopping* stopping : {&one, &other}) {
        DraftStopping::Round round = device.round(1000);
        round.large.sequences = round.small.sequences = 2;
        stopping->begin_round(round);
        rounds += stopping->may_draft() ? 1 : 0;
        if (stopping->may_draft() && stopping->next(0) == DraftStopping::Next::kSmall) {
          stopping->observe_pass(1, works);
          stopping->add_small(0.9F);
          stopping->end_round(1);
        } else {
          stopping->end_round(0);
        }
      }
    }
    return rounds;
  };
  EXPECT_GT(drafts(2), 390);
  EXPECT_LT(drafts(1), 150);
}

// A request whose drafts are complete waits for the others. Their further passes have batches of
// their own.
TEST(DraftStopping, FurtherPassesAreSharedByRequestsThatDraftOn) {
  const Device device({0.3, 0.02});
  const auto stats = std::make_shared<AcceptanceStats>();
  stats->drafts.with_small = {40, 120, 80, 80, 80};
  stats->drafts.unspent = 0;
  for (int i = 0; i < 100; ++i) {
    for (const int before : {DraftAcceptance::kAfterAll, DraftAcceptance::small(0.9F)}) {
      stats->drafts.acceptance.observe(DraftAcceptance::next(before), i % 10 > 0, 1);
    }
  }
  DraftStopping one(8, stats, By::kSmall), other(8, stats, By::kSmall);
  DraftStopping::Round round = device.round(1000);
  round.large.sequences = round.small.sequences = 2;
  for (DraftStopping* stopping : {&one, &other, &one}) stopping->begin_round(round);
  for (DraftStopping* stopping : {&one, &other}) {
    ASSERT_EQ(stopping->next(0), DraftStopping::Next::kSmall);
    stopping->observe_pass(1, 2);
    ASSERT_TRUE(stopping->add_small(0.9F));
  }
  EXPECT_EQ(one.next(0), DraftStopping::Next::kSmall);
  other.end_drafts();
  EXPECT_EQ(one.next(0), DraftStopping::Next::kStop);
  EXPECT_EQ(stats->drafts.active, 1);
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

}  // namespace
}  // namespace tandem::simulated
