// Every mutation of a kernel is detected by its check. Without mutations all checks pass.
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "tests/engine/backend/torch/cuda/kernels/checks.h"
#include "tests/engine/backend/torch/cuda/kernels/fp8_check.h"
#include "tests/engine/backend/torch/cuda/kernels/gather_check.h"
#include "tests/engine/backend/torch/cuda/kernels/lora_check.h"
#include "tests/engine/backend/torch/cuda/kernels/moves_check.h"
#include "tests/engine/backend/torch/cuda/kernels/product_check.h"
#include "tests/engine/backend/torch/cuda/kernels/quantized_check.h"
#include "tests/engine/backend/torch/cuda/kernels/readout_check.h"
#include "tests/sanitized.h"

namespace tandem::cuda {
namespace {

// What the first of these finds that finds something. Those behind it do not run.
template <class... Check>
std::string first_found(const Check&... checks) {
  std::string found;
  static_cast<void>(((found = checks()).empty() && ...));
  return found;
}

std::string inputs() { return check_inputs<float>(5, 33, 1); }

std::string norms() {
  return first_found([&] { return check_norms<float>(NormKind::kLayer, 2, 300, 2); },
                     [&] { return check_norms<BFloat16>(NormKind::kRms, 2, 40, 3); });
}

std::string activations() { return check_activations<float>(Activation::kSilu, 3, 7, 4); }

std::string rounded() { return check_rounded<BFloat16>(2, 300, 6); }

std::string rope() { return check_rope<float>({6, 2, 20, 4}, 7, true, 5); }

std::string attention() {
  const AttentionShape s{6, 2, 20, 4};
  AttentionShape biased{2, 1, 4, 4};
  biased.bias = true;
  return first_found(
      [&] { return check_attention<float>({s, {{19, 5}, {3, 2}, {0, 1}}, 6}); },
      [&] { return check_attention<float>({s, {{21, 8}, {4, 2}}, 7}, {4, 0}); },
      [&] { return check_attention<float>({s, {{21, 8}, {4, 6}}, 8}, {1, 3}); },
      [&] { return check_attention<float>({biased, {{9, 3}}, 10}); },
      [&] { return check_attention<float>({{2, 1, 4, 16}, {{258, 2}}, 9}); },
      [&] { return check_attention<float>({{8, 2, 4, 16}, {{70, 9}}, 11}, {.most_bytes = 1}); },
      [&] { return check_attention<float>({{1, 1, 8, 64}, {{17000, 1}}, 12}); });
}

std::string moves() {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const std::string all = first_of(
        {check_moves<int32_t>({.within = true}, 5, seed), check_moves<int32_t>({}, 5, seed)});
    if (!all.empty()) return all;
  }
  return "";
}

std::string gathered() { return check_gather<int32_t>({}, 9, 12); }

std::string readout() {
  return first_found([&] { return check_readout(40, 1); }, [&] { return check_readout(40, 2); },
                     [&] { return check_readout(1500, 3); },
                     [&] { return check_readout((kSumGroups + 1) * kSumBlock, 4); },
                     [&] { return check_cuts(6); }, [&] { return check_choices(5); },
                     [&] { return check_readout(2 * kSumBlock + 40, 7, kSumBlock); },
                     [&] {
                       return check_cut_rows(
                           {{.vocab = 1500, .changes = 400}, {.vocab = 1700, .top_p = 0.8f}}, 8,
                           kSumBlock);
                     });
}

std::string products() {
  const ProductShape plain{.outs = 72, .in = 296, .bias = true, .blocks = 2};
  ProductShape gated{.outs = 2 * 24, .in = 40, .then = ProductThen::kGate, .bias = true};
  ProductShape added = gated;
  added.added = true;
  return first_found([&] { return check_product<BFloat16>(plain, 3, 1); },
                     [&] { return check_product<Half>(plain, 11, 2); },
                     [&] { return check_product<BFloat16>(gated, 2, 3); },
                     [&] { return check_product<BFloat16>(added, 3, 5); });
}

std::string blocks() {
  const BlocksShape levels{.type = cpu::QuantType::kQ4K, .outs = 20, .in = 256, .beside = 3};
  const BlocksShape sixteens{.type = cpu::QuantType::kQ6K, .outs = 20, .in = 256, .normed = true};
  const BlocksShape fours{.outs = 20, .in = 160, .blocks = 1};
  return first_found([&] { return check_blocks<BFloat16>(fours, 11, 1); },
                     [&] { return check_blocks<BFloat16>(levels, 2, 2); },
                     [&] { return check_blocks<BFloat16>(sixteens, 2, 4); },
                     [&] { return check_blocks_nan<BFloat16>(fours, 3); },
                     [&] { return BlocksRig<BFloat16>(fours, 5).unpacked<float>(); });
}

std::string loras() {
  LoraCase s{.in = 40, .outs = {12, 4, 4}, .ranks = {{3, 5, 1}, {2, 0, 3}, {0, 1, 4}}};
  LoraCase cleared = s;
  cleared.in = 21;
  cleared.add = false;
  const std::vector<LoraRow> rows = {{0, 0}, {1, 0}, {2, -1}, {3, 1}, {4, 2}, {5, 0}};
  return first_found([&] { return check_lora<BFloat16>(s, rows, 1); },
                     [&] { return check_lora<float>(cleared, rows, 2); },
                     [&] { return check_lora<BFloat16, float>(s, kSingleRows + 9, 3); },
                     [&] { return check_added_rows<BFloat16>(4, 40, 4); });
}

struct MutantCase {
  Mutant mutant;
  const char* name;
  const char* what;
};

void PrintTo(const MutantCase& mutant, std::ostream* out) { *out << mutant.what; }

const MutantCase kMutants[] = {
#define TANDEM_MUTANT(name, what) {Mutant::k##name, #name, what},
    TANDEM_MUTANT_LIST(TANDEM_MUTANT)
#undef TANDEM_MUTANT
};

// Runs the check for the mutated kernel. Grouped by kernel.
std::string check_of(Mutant mutant) {
  if (mutant < Mutant::kEmbedAdapters) return norms();
  if (mutant == Mutant::kEmbedAdapters) return inputs();
  if (mutant < Mutant::kGateRows) return rope();
  if (mutant == Mutant::kGateRows) return activations();
  if (mutant < Mutant::kSoftmaxWithoutBarrier) return rounded();
  if (mutant < Mutant::kOneDirection) return attention();
  if (mutant < Mutant::kGatherFirstTable) return moves();
  if (mutant < Mutant::kReadTies) return gathered();
  if (mutant < Mutant::kProductTail) return readout();
  if (mutant < Mutant::kBlocksHalves) return products();
  return mutant < Mutant::kLoraWithoutBarrier || mutant == Mutant::kNoWait ? blocks() : loras();
}

class Mutants : public testing::TestWithParam<MutantCase> {
 protected:
  void TearDown() override { emulator::awake = Mutant::kNone; }
};

TEST_P(Mutants, AreDetected) {
  emulator::seed(11);
  emulator::awake = GetParam().mutant;
  std::string found;
  try {
    found = check_of(GetParam().mutant);
  } catch (const emulator::Fault& fault) {
    found = fault.what();
  }
  EXPECT_NE(found, "") << GetParam().what;
  RecordProperty("found", found);
}

// Sanitizers check the kernels, and mutated kernels take minutes under them.
std::vector<MutantCase> mutants() {
  if (test::kSanitized) return {};
  return {std::begin(kMutants), std::end(kMutants)};
}
INSTANTIATE_TEST_SUITE_P(Kernels, Mutants, testing::ValuesIn(mutants()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Mutants);

TEST(WithoutMutants, ChecksPass) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    emulator::seed(seed);
    EXPECT_EQ(first_found(inputs, norms, activations, rope, attention, moves, gathered, readout,
                          products, blocks, loras),
              "");
  }
}

}  // namespace
}  // namespace tandem::cuda
