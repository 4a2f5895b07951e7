// The checks of the kernels' program (bench/kernels) on the emulated device: kernels pass, and
// mutated kernels do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "bench/kernels/chain.h"
#include "bench/kernels/checks.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"
#include "tests/sanitized.h"

namespace tandem::cuda::program {
namespace {

Shape tiny() {
  most_cores = 1;
  Shape s;
  s.hidden = 264;  // more than one step of each warp, and a tail
  s.inner = 40;
  s.vocab = 50;
  s.long_vocab = 1100;
  s.heads = 4;
  s.head_dim = 16;
  s.page_rows = 4;
  s.kv_heads = {4, 2};
  s.contexts = {5, 260};
  s.sequences = {1, 2};
  s.rows_each = {1, 3};
  s.multiprocessors = 2;
  return s;
}

// Names of the checks that fail; or what the emulator says. Once a name has `enough` in it, no
// further checks begin.
std::string failures(Mutant mutant, const std::string& part, const char* enough = nullptr) {
  emulator::awake = mutant;
  Report report;
  report.quiet = true;
  Shape s = tiny();
  if (part == "blocks") {  // of whole blocks of 256
    s.hidden = 256;
    s.inner = 256;
    s.kv_heads = {4};
  }
  std::string all;
  try {
    check_all(report, s, 11, [&](const std::string& name) {
      const bool ends =
          enough != nullptr && std::ranges::any_of(report.wrong, [&](const auto& wrong) {
            return wrong.find(enough) != std::string::npos;
          });
      return !ends && name.rfind(part, 0) == 0;
    });
    for (const std::string& name : report.wrong) all += (all.empty() ? "" : " ") + name;
  } catch (const emulator::Fault& fault) {
    all = fault.what();
  }
  emulator::awake = Mutant::kNone;
  return all;
}

TEST(KernelsProgram, ChecksPass) {
  for (const char* part :
       {"elementwise", "fp8", "rope", "readout", "product", "blocks", "attention"}) {
    EXPECT_EQ(failures(Mutant::kNone, part), "") << part;
  }
}

// Every access of a step is within its memory and behind a wait, and its bits are the same in any
// order of threads.
TEST(KernelsProgram, StepsAreTheSameInAnyOrder) {
  Shape s = tiny();
  s.hidden = 64;  // as the heads
  constexpr int kLayers = 2;
  const ChainCase cases[] = {{1, 1, 5}, {2, 3, 9}, {1, 5, 300}};
  Chain chain(s, kLayers, /*pages=*/80, 3);
  for (const ChainCase& of : cases) {
    const PlacedRows rows = chain.rows_of(of.sequences, of.each, of.context);
    std::vector<float> first;
    for (uint64_t seed = 0; seed < 2; ++seed) {
      emulator::seed(seed);
      chain.poison();
      chain.launch_step(rows.view(), 1 + static_cast<int>(seed), {});
      std::vector<float> logits = chain.logits();
      logits.resize(static_cast<size_t>(of.sequences * of.each * s.vocab));
      for (const float x : logits) EXPECT_TRUE(std::isfinite(x)) << of.name();
      if (first.empty()) first = logits;
      EXPECT_EQ(logits, first) << of.name();
    }
  }
}

struct Wrong {
  Mutant mutant;
  const char* part;
  const char* found;  // part of a name of a failed check
};

void PrintTo(const Wrong& wrong, std::ostream* out) {
  *out << wrong.part << ", mutant " << static_cast<int>(wrong.mutant);
}

class KernelsProgramOf : public testing::TestWithParam<Wrong> {};

TEST_P(KernelsProgramOf, WrongKernelsFail) {
  const std::string found = failures(GetParam().mutant, GetParam().part, GetParam().found);
  EXPECT_NE(found, "");
  EXPECT_THAT(found, testing::HasSubstr(GetParam().found));
}

// Sanitizers check the kernels, and mutated kernels take minutes under them.
std::vector<Wrong> wrong_kernels() {
  if (test::kSanitized) return {};
  return {Wrong{Mutant::kEmbedAdapters, "elementwise", ""},
          Wrong{Mutant::kNormStride, "elementwise", "norm.rows_1.difference"},
          Wrong{Mutant::kGateRows, "elementwise", ""},
          Wrong{Mutant::kFp8WithoutBarrier, "fp8", ""},
          Wrong{Mutant::kFp8Truncated, "fp8", "codes"},
          Wrong{Mutant::kFp8Most, "fp8", "scales"},
          Wrong{Mutant::kFp8FirstScale, "fp8", ""},
          Wrong{Mutant::kRopeNeighbours, "rope", ""},
          Wrong{Mutant::kStoreInOrder, "rope", "rows_1.difference"},
          Wrong{Mutant::kReadTies, "readout", "bits"},
          Wrong{Mutant::kReadNan, "readout", "bits"},
          Wrong{Mutant::kReadLanesTurned, "readout", "bits"},
          Wrong{Mutant::kRaceKeyTurned, "readout", "bits"},
          Wrong{Mutant::kReadFirstChanges, "readout", ""},
          Wrong{Mutant::kReadRepetition, "readout", "bits"},
          Wrong{Mutant::kReadTopKTies, "readout", "bits"},
          Wrong{Mutant::kReadNucleusOfAll, "readout", "bits"},
          Wrong{Mutant::kReadLastPart, "readout", "parts"},
          Wrong{Mutant::kChooseAlways, "readout", ""},
          Wrong{Mutant::kChooseBest, "readout", "choose"},
          Wrong{Mutant::kChooseInvalid, "readout", "choose"},
          Wrong{Mutant::kProductStride, "product.o", ""},
          Wrong{Mutant::kProductHalves, "product.o", "o.difference"},
          Wrong{Mutant::kProductFirstTile, "product.qkv", "qkv.difference"},
          Wrong{Mutant::kPackInOrder, "product.gate_up", "gate_up.difference"},
          Wrong{Mutant::kBlocksHalves, "blocks", "q4_k.gate_up.difference"},
          Wrong{Mutant::kBlocksZero, "blocks", "q8_0.down.difference"},
          Wrong{Mutant::kBlocksMin, "blocks", "q4_k.down.difference"},
          Wrong{Mutant::kBlocksOuts, "blocks", "q8_0.down.difference"},
          Wrong{Mutant::kBlocksRows, "blocks", "q8_0.down.difference"},
          Wrong{Mutant::kBlocksRounded, "blocks", "rows.difference"},
          Wrong{Mutant::kBlocksOfAStep, "blocks", "rows.difference"},
          Wrong{Mutant::kBlocksUnweighted, "blocks", "gate_up.rows.difference"},
          Wrong{Mutant::kNotRescaled, "attention", "context_260"},
          Wrong{Mutant::kNoWindow, "attention", "tree_in_window"},
          Wrong{Mutant::kSeeNext, "attention", ""},
          Wrong{Mutant::kNoExtra, "attention", "tree"},
          Wrong{Mutant::kHeadsInTurn, "attention", "kv_heads_2"},
          Wrong{Mutant::kFirstTable, "attention", "sequences_2"},
          Wrong{Mutant::kNoWait, "product.o", ""}};
}
INSTANTIATE_TEST_SUITE_P(Mutants, KernelsProgramOf, testing::ValuesIn(wrong_kernels()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelsProgramOf);

}  // namespace
}  // namespace tandem::cuda::program
