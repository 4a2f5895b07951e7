// The device of tests: the CPU, or the one that TANDEM_TEST_DEVICE in the environment names:
// "cuda:1", or "lazy": the CPU behind queues that run commands as late as possible
// (queue/lazy_queue.h).
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "engine/backend/torch/shared.h"
#include "engine/base/check.h"
#include "engine/base/config.h"
#include "engine/base/device_name.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"

namespace tandem {

inline bool test_device_is_lazy() {
  const char* const name = std::getenv("TANDEM_TEST_DEVICE");
  return name != nullptr && std::string(name) == "lazy";
}

// DeviceConfig::graphs of a test's devices.
inline bool test_device_graphs = true;

// State shared by the devices of a test.
inline std::shared_ptr<TorchShared> test_shared() {
  if (!test_device_is_lazy()) return std::make_shared<TorchShared>();
  const auto devices = std::make_shared<LazyDevices>(LazyDevices::Options{.eager = true});
  return std::make_shared<TorchShared>([devices](const DeviceConfig&) { return devices->queue(); });
}

// The index-th device of a test; on CUDA, the index-th device queue of the named device.
inline DeviceConfig test_device(int index = 0, int threads = 1,
                                CpuKernels kernels = CpuKernels::kOwn) {
  const char* const name = std::getenv("TANDEM_TEST_DEVICE");
  if (name == nullptr || test_device_is_lazy()) {
    DeviceConfig device{.index = index, .threads = threads, .cpu_kernels = kernels};
    if (kernels == CpuKernels::kAten) device.packed_products = true;
    device.graphs = test_device_graphs;
    return device;
  }
  const auto named = parse_device(name);
  TANDEM_CHECK(named.ok());
  DeviceConfig device = *named;
  if (device.kind == DeviceKind::kCpu) {
    device.index += index;
    device.threads = threads;
    device.cpu_kernels = kernels;
  } else {
    device.queue += index;
    device.packed_products = true;
    device.graphs = test_device_graphs;
  }
  return device;
}

// Whether that device's kernels are batch-invariant (ModelShape::batch_invariant).
inline bool test_device_keeps_bits() { return test_device().kind == DeviceKind::kCpu; }

}  // namespace tandem
