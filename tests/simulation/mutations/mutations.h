// Measures which mutations (engine/base/mutation.h) the simulation detects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/mutation.h"

namespace tandem::simulation {

struct NamedMutation {
  Mutation mutation;
  const char* name;
  int invariant;  // that it breaks, of docs/reliability.md
  const char* what;
};
const std::vector<NamedMutation>& mutations();

struct Hunt {
  bool caught = false;
  uint64_t seed = 0;    // that detected it
  std::string message;  // of the invariant, or of the device or check that aborted
};
// Runs seeds, with and without replicas, with the mutation active, in a child process until one
// fails.
Hunt hunt(const NamedMutation& mutation, uint64_t seeds);

}  // namespace tandem::simulation
