// The instruction sets ("targets") that the kernels are compiled for, with Highway's names: AVX3
// (AVX-512), AVX2, EMU128 (plain C++). AVX3_VNNI is AVX3 with byte dot products. AVX3_GFNI adds bit
// permutations within bytes, and AVX3_BF16 bf16 dot products. The best target of the machine is
// used.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::cpu {

std::vector<std::string> targets();  // supported by this machine, best first
std::string target();                // the one in use

// For tests and benchmarks: selects a target; an empty name selects the best. Matrices packed
// before the call must not be used after it. INVALID_ARGUMENT: not one of targets().
absl::Status force_target(absl::string_view name);

// Whether an AVX3 target has VNNI, GFNI and BF16.
bool use_vnni();
bool use_gfni();
bool use_bf16();

// Whether weights that come from memory are prefetched into the L2 cache, and again from there into
// the L1 cache. On Intel's processors, which have few buffers for lines on their way to L1, this is
// faster than once into the L1 cache. On AMD's Zen 5 it was not faster.
bool prefetches_two_levels();

// Whether the target in use multiplies bytes (AVX2, and AVX3_VNNI or better; plain AVX3 does not).
bool multiplies_fours();

}  // namespace tandem::cpu
