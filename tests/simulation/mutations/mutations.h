// Which mutations the simulation detects (engine/base/mutation.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/mutation.h"

namespace tandem::simulation {

struct NamedMutation {
  Bug bug;
  const char* name;
  int invariant;  // of docs/reliability.md, that it breaks
  const char* what;
};
const std::vector<NamedMutation>& mutations();

struct Hunt {
  bool caught = false;
  uint64_t seed = 0;    // that caught it
  std::string message;  // of the invariant, or of the device or check that stopped the process
};
// Runs so many seeds, with replicas and without, with the bug in a process of its own until one of
// them breaks.
Hunt hunt(const NamedMutation& bug, uint64_t seeds);

}  // namespace tandem::simulation
