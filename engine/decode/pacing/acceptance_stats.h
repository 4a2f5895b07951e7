// Statistics that the requests of a deployment share. A new request begins with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/pacing/draft_acceptance.h"
#include "engine/decode/pacing/mask_acceptance.h"
#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// Decayed sums over recent rounds.
struct RecentRounds {
  static constexpr double kMemory = 0.99;  // of a round

  double rounds = 0, tokens = 0, drafts = 0, small_passes = 0, small_rows = 0;

  void observe(const RecentRounds& round) {
    scale(kMemory);
    add(round);
  }
  void add(const RecentRounds& other) {
    rounds += other.rounds;
    tokens += other.tokens;
    drafts += other.drafts;
    small_passes += other.small_passes;
    small_rows += other.small_rows;
  }
  void scale(double factor) {
    for (double* sum : {&rounds, &tokens, &drafts, &small_passes, &small_rows}) *sum *= factor;
  }
  void limit(double most) {  // rounds
    if (rounds > most) scale(most / rounds);
  }
  void visit(SavedNumbers* saved) {
    constexpr double kLeast = 1e-6;  // rates divide by the rounds
    saved->visit(&rounds, kLeast);
    for (double* sum : {&tokens, &drafts, &small_passes, &small_rows}) saved->visit(sum);
  }
};

// Of DraftStopping.
struct DraftStats {
  static constexpr int kTrial = 4;     // rounds of a trial of the small model, by one request
  static constexpr int kFurther = 48;  // rounds until one with a draft more than pays
  static constexpr int kPeak = 8;      // rounds that peak_streams lasts
  static constexpr double kFirstUnspent = 16, kMostUnspent = 64;  // of a new deployment, and most
  // Two drafts that are always accepted.
  static constexpr RecentRounds kAllRight{1, 3, 2, 2, 2};

  DraftAcceptance acceptance;
  // Of requests whose small model may draft (less than one round: none yet), and of others.
  RecentRounds with_small{1e-6, 1e-6, 0, 0, 0}, without_small{1, 1, 0, 0, 0};
  double answer = 0;  // expected tokens of a request without a limit; 0: unknown
  // Time left for drafts that do not seem to pay, in batches of one row of the large model. Trials
  // that last for a request may overdraw it.
  double unspent = kFirstUnspent;
  // Batches of the small model hold fewer passes than there are requests that draft, because some
  // need fewer passes per round. 0: a batch holds a pass of each. 1: each pass has its own batch.
  double unshared = 0;
  int since_further = 0;  // rounds
  int streams = 0;        // requests that use this now
  int peak_streams = 0;   // the most of them in the last rounds
  int since_peak = 0;     // rounds
  int willing = 0;        // of `streams`, those for which the small model pays if all use it
  int drafting = 0;       // of `streams`, those whose small model may draft
  int active = 0;         // of `drafting`, those whose drafts of this round are not complete

  // Updates peak_streams: a client whose request has ended may send the next one soon.
  void begin_round() {
    if (streams < peak_streams && ++since_peak < kPeak) return;
    peak_streams = streams;
    since_peak = 0;
  }
  void visit(SavedNumbers* saved) {  // but `unshared`, and requests that use this now
    acceptance.visit(saved);
    with_small.visit(saved);
    without_small.visit(saved);
    saved->visit(&answer);
    saved->visit(&unspent, -kMostUnspent, kMostUnspent);
    saved->visit(&since_further, 0, 1 << 30);
  }
  // The numbers of this version for those of any.
  static std::vector<double> upgraded(std::span<const double> numbers) {
    constexpr size_t kOthers = 13;  // numbers behind those of `acceptance`
    return DraftAcceptance::upgraded(numbers, kOthers);
  }
};

// Of TreeSize.
struct TreeStats {
  static constexpr int kMost = 16;          // masks and candidates
  static constexpr double kMemory = 0.995;  // of a token
  static constexpr int kTrial = 3;          // rounds: the first one has masks alone
  // Rounds of each request from one without rows to the next, and until the first one. They show
  // the time of a batch without rows, but lose the predictions.
  static constexpr int kPlainEvery = 128, kFirstPlain = 4;
  static constexpr double kFirstUnspent = 4, kMostUnspent = 16;  // of a new deployment, and most

  MaskAcceptance acceptance{kMost, kMost, nullptr, kMemory};
  AcceptanceEstimator yield;  // accepted tokens of recent trees, per token expected of them
  // Time left for trees that do not seem to pay, in batches of one row.
  double unspent = kFirstUnspent;
  int streams = 0;     // requests that use this now
  int64_t rounds = 0;  // of all of them

  // Returns true for a round without rows. Requests that decode together have it in one batch.
  bool begin_round() {
    const int64_t round = rounds++ / std::max(1, streams);
    return round % kPlainEvery == kFirstPlain;
  }
  void earn(double batches) { unspent = std::min(kMostUnspent, unspent + batches); }
  void visit(SavedNumbers* saved) {
    acceptance.visit(saved);
    yield.visit(saved);
    saved->visit(&unspent, 0, kMostUnspent);
  }
};

// Loop thread only.
struct AcceptanceStats {
  DraftStats drafts;
  TreeStats trees;
};

}  // namespace tandem
