// The device of tests: the CPU, or the one that TANDEM_TEST_DEVICE in the environment names:
// "cuda:1", or "lazy": the CPU behind queues that run commands as late as possible
// (queue/lazy_queue.h). TANDEM_TEST_GRAPHS=0: its steps are launched, not replayed.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "engine/backend/torch/platform.h"
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
inline bool test_device_graphs = [] {
  const char* const word = std::getenv("TANDEM_TEST_GRAPHS");
  return word == nullptr || std::string(word) != "0";
}();

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

// Whether a platform has weights of `dtype` with keys and values of `kv_dtype`.
inline bool holds(const Platform& platform, DType dtype, DType kv_dtype = DType::kAuto) {
  const absl::StatusOr<DType> held = platform.weight_dtype(dtype, SafeDType::kF32);
  return held.ok() && platform.kv_type(kv_dtype, platform.row_type(*held)).ok();
}
// The same of the test's device. Tests of other types are skipped there.
inline bool test_device_holds(DType dtype, DType kv_dtype = DType::kAuto) {
  const absl::StatusOr<const Platform*> platform = find_platform(test_device());
  TANDEM_CHECK(platform.ok());
  return holds(**platform, dtype, kv_dtype);
}

// The most that a log-probability of the tiny models may differ where products round differently.
// Rows between products have the type of the weights on CUDA.
inline double rounding_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 0.5;
    case DType::kFloat16:
      return 0.05;
    default:
      return 1e-4;
  }
}

}  // namespace tandem
