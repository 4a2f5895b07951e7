// Constraints by random automata under every method (constraint_contract.h).
#include "tests/engine/decode/constraint_contract.h"

namespace tandem::test {
namespace {

TEST(ContractConstraint, Speculative) {
  const Outcome seen = expect_constrained_ar(speculative_case(), 2400);
  EXPECT_GT(seen.dead, cases(50));
  EXPECT_GT(seen.preempted, cases(50));
  EXPECT_GT(seen.cancelled, cases(50));
  EXPECT_GT(seen.drafted, cases(2000));
  EXPECT_GT(seen.forced, cases(500));
  EXPECT_GT(seen.followed, 0);
}

TEST(ContractConstraint, SpeculativeByRatio) {
  EXPECT_GT(expect_constrained_ar(ratio_case(), 800).drafted, cases(500));
}

TEST(ContractConstraint, Ngram) {
  const Outcome seen = expect_constrained_ar(ngram_case(), 1600);
  EXPECT_GT(seen.drafted, cases(200));
  EXPECT_GT(seen.forced, cases(200));
  EXPECT_GT(seen.followed, 0);
}

TEST(ContractConstraint, Bild) {
  for (const bool exact : {true, false}) {
    EXPECT_GT(expect_constrained_ar(bild_case(exact), 1200).drafted, cases(500));
  }
}

TEST(ContractConstraint, Bita) {
  EXPECT_GT(expect_constrained_ar(bita_case(), 1600).drafted, cases(300));
}

TEST(ContractConstraint, Ppd) {
  EXPECT_GT(expect_constrained_ar(ppd_case(), 800).drafted, cases(300));
}

TEST(ContractConstraint, LlmToSlm) { expect_constrained_ar(llm_to_slm_case(), 400); }

TEST(ContractConstraint, Beam) { expect_constrained_ar(beam_case(), 400); }

// Answers that wait for the constraint change no token, also in the middle of a chain of passes.
TEST(LateConstraint, EveryMethodGivesTheSameTokens) {
  int64_t cancelled = 0;
  for (const MethodCase& method :
       {speculative_case(), ratio_case(), ngram_case(), bild_case(true), bild_case(false),
        bita_case(), ppd_case(), llm_to_slm_case(), beam_case()}) {
    const Outcome seen = expect_constrained_ar(method, 400, late_automata());
    EXPECT_GT(seen.late, cases(100));
    cancelled += seen.cancelled;
  }
  EXPECT_GT(cancelled, cases(30));
}

}  // namespace
}  // namespace tandem::test
