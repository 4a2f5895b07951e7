// Which kernels a CPU lane runs: the ones of this folder, or LibTorch's operators as their
// reference.
#pragma once

#include "engine/base/config.h"

namespace tandem::cpu {

// What a lane sets on its own thread before it runs anything (device.cpp), from its DeviceConfig.
struct Options {
  CpuKernels kernels = CpuKernels::kOwn;
};

// The calling thread's; at first the defaults. Kernels look here on the thread that calls them, not
// on its team.
inline Options& options() {
  thread_local Options mine;
  return mine;
}

}  // namespace tandem::cpu
