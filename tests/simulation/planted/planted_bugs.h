// Which planted bugs the simulation finds (engine/base/planted.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/planted.h"

namespace tandem::simulation {

struct PlantedBug {
  Bug bug;
  const char* name;
  int invariant;  // of RELIABILITY.md, that it breaks
  const char* what;
};
const std::vector<PlantedBug>& planted_bugs();

struct Hunt {
  bool caught = false;
  uint64_t seed = 0;    // that caught it
  std::string message;  // of the invariant, or of the device or check that stopped the process
};
// Runs so many seeds, with replicas and without, with the bug in a process of its own until one of
// them breaks.
Hunt hunt(const PlantedBug& bug, uint64_t seeds);

}  // namespace tandem::simulation
