// The vector instruction sets that the kernels of this folder are compiled for, by Highway's names:
// AVX3 (AVX-512), AVX2 and EMU128 (plain C++); AVX3_VNNI is AVX3 with instructions for int8
// products, AVX3_BF16 that with those for bf16 products. The best that the machine has is used.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::cpu {

std::vector<std::string> targets();  // those that this machine can run, best first
std::string target();                // the one in use

// For tests and measurements: from here on that one, or the best again if the name is empty.
// Matrices packed before are of no use after. INVALID_ARGUMENT: not one of targets().
absl::Status force_target(absl::string_view name);

// Whether AVX3 is AVX3_VNNI or better, and whether it is AVX3_BF16.
bool use_vnni();
bool use_bf16();

// Whether the target in use multiplies and adds fours of bytes: it is AVX3_VNNI or better.
bool multiplies_fours();

}  // namespace tandem::cpu
