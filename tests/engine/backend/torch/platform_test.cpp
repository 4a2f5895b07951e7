// Platforms: which types and devices they support.
#include "engine/backend/torch/platform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/backend/torch/model/weight_store.h"
#include "engine/backend/torch/open_queue.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/shared.h"
#include "tests/engine/backend/torch/test_device.h"

namespace tandem {
namespace {

TEST(Platforms, AreFoundByDeviceAndKernels) {
  EXPECT_EQ(*find_platform({}), &cpu_platform());
  EXPECT_EQ(*find_platform({.cpu_kernels = CpuKernels::kAten}), &aten_platform());
  EXPECT_EQ(&platform_of(at::kCPU), &cpu_platform());
  EXPECT_EQ(&platform_of(at::kCPU, CpuKernels::kAten), &aten_platform());
  EXPECT_EQ(&cpu_platform().ops(), &cpu_ops());
  EXPECT_EQ(&aten_platform().ops(), &aten_ops());
  const auto cuda = find_platform({.kind = DeviceKind::kCuda, .index = 3});
  if (!cuda.ok()) {
    EXPECT_EQ(cuda.status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(cuda.status().message(), "device: cuda:3; allowed: cpu (this build has no CUDA)");
    EXPECT_ANY_THROW(platform_of(at::Device(at::kCUDA, 3)));
  } else {
    EXPECT_EQ(&platform_of(at::Device(at::kCUDA, 3)), *cuda);
  }
}

TEST(Platforms, OnlyOwnKernelsAreBatchInvariant) {
  EXPECT_TRUE(cpu_platform().batch_invariant());
  EXPECT_FALSE(aten_platform().batch_invariant());
}

TEST(Platforms, CpuDevicesHaveNoQueueAndUseAllCores) {
  TorchShared shared;
  const auto opened = open_queue({}, shared);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->queue, nullptr);
  EXPECT_EQ(opened->peers, "");
  EXPECT_EQ(cpu_platform().default_threads(12), 12);
  EXPECT_GT(cpu_platform().free_bytes(0), 0);
}

TEST(Platforms, TypesOnACpu) {
  const Platform& cpu = cpu_platform();
  EXPECT_EQ(*cpu.weight_dtype(DType::kAuto, SafeDType::kBF16), DType::kFloat32);
  EXPECT_EQ(*cpu.weight_dtype(DType::kInt8, SafeDType::kBF16), DType::kInt8);
  EXPECT_EQ(cpu.weight_dtype(DType::kFp8, SafeDType::kBF16).status().message(),
            "dtype: fp8; allowed: auto, fp32, bf16, fp16, fp64, int8, int4, q4_0, stored on a CPU");
  EXPECT_EQ(*aten_platform().weight_dtype(DType::kFp8, SafeDType::kBF16), DType::kFp8);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8, DType::kStored}) {
    EXPECT_EQ(cpu.row_type(dtype), at::kFloat);
  }
  EXPECT_EQ(cpu.row_type(DType::kFloat64), at::kDouble);
  // Embeddings are not rounded to 8 bits.
  EXPECT_EQ(cpu.embedding_type(DType::kInt8, SafeDType::kBF16), at::kBFloat16);
  EXPECT_EQ(cpu.embedding_type(DType::kInt8, SafeDType::kF32), at::kFloat);
  EXPECT_EQ(cpu.embedding_type(DType::kFloat16, SafeDType::kF32), at::kHalf);

  EXPECT_EQ(*cpu.kv_type(DType::kAuto, at::kFloat), at::kFloat);
  EXPECT_EQ(*cpu.kv_type(DType::kBFloat16, at::kFloat), at::kBFloat16);
  EXPECT_EQ(*cpu.kv_type(DType::kAuto, at::kDouble), at::kDouble);
  EXPECT_EQ(cpu.kv_type(DType::kBFloat16, at::kDouble).status().message(),
            "kv_dtype: DTYPE_BF16; allowed: unset with DTYPE_FP64");
}

// What tests skip on a device that does not have it.
TEST(Platforms, TestsKnowTheTypesOfTheirDevice) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    EXPECT_TRUE(holds(cpu_platform(), dtype)) << dtype_name(dtype);
  }
  EXPECT_TRUE(holds(cpu_platform(), DType::kFloat32, DType::kBFloat16));
  EXPECT_FALSE(holds(cpu_platform(), DType::kFloat64, DType::kBFloat16));
  const auto cuda = find_platform({.kind = DeviceKind::kCuda});
  if (!cuda.ok()) return;
  EXPECT_TRUE(holds(**cuda, DType::kBFloat16));
  EXPECT_FALSE(holds(**cuda, DType::kInt8));
  EXPECT_FALSE(holds(**cuda, DType::kFloat32, DType::kBFloat16));
}

TEST(Platforms, TypesOnCuda) {
  const auto found = find_platform({.kind = DeviceKind::kCuda});
  if (!found.ok()) GTEST_SKIP() << "a build without CUDA";
  const Platform& cuda = **found;
  EXPECT_EQ(*cuda.weight_dtype(DType::kAuto, SafeDType::kBF16), DType::kBFloat16);
  EXPECT_EQ(*cuda.weight_dtype(DType::kAuto, SafeDType::kF16), DType::kFloat16);
  EXPECT_EQ(*cuda.weight_dtype(DType::kAuto, SafeDType::kF32), DType::kFloat32);
  EXPECT_EQ(cuda.weight_dtype(DType::kInt8, SafeDType::kBF16).status().message(),
            "dtype: int8; allowed: auto, fp32, bf16, fp16, fp64, fp8, int4, q4_0, stored on CUDA");
  EXPECT_EQ(*cuda.weight_dtype(DType::kFp8, SafeDType::kF32), DType::kFp8);
  EXPECT_EQ(cuda.row_type(DType::kFp8), at::kBFloat16);
  EXPECT_EQ(cuda.embedding_type(DType::kFp8, SafeDType::kF32), at::kBFloat16);
  EXPECT_EQ(cuda.row_type(DType::kStored), at::kBFloat16);
  EXPECT_EQ(cuda.row_type(DType::kFloat16), at::kHalf);
  EXPECT_EQ(*cuda.kv_type(DType::kAuto, at::kHalf), at::kHalf);
  EXPECT_FALSE(cuda.kv_type(DType::kFloat32, at::kHalf).ok());
  EXPECT_FALSE(cuda.batch_invariant());
  EXPECT_EQ(cuda.default_threads(12), 4);
}

}  // namespace
}  // namespace tandem
