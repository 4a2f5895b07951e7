#include "engine/backend/torch/caught.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

namespace tandem {
namespace {

using absl::StatusCode;

template <class E>
absl::Status status_of(const E& error) {
  try {
    throw error;
  } catch (...) {
    return caught("cuda:0");
  }
}

absl::Status of_cuda(int code) {
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  return status_of(c10::AcceleratorError(here, code, "CUDA error: something"));
}

absl::Status of_text(const std::string& what) {
  return status_of(c10::Error({__func__, __FILE__, __LINE__}, what));
}

TEST(Caught, ShortagesLoseNoDevice) {
  EXPECT_EQ(of_cuda(2).code(), StatusCode::kResourceExhausted);  // cudaErrorMemoryAllocation
  EXPECT_EQ(
      of_text("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`").code(),
      StatusCode::kResourceExhausted);
  EXPECT_EQ(of_text("DefaultCPUAllocator: can't allocate memory").code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(status_of(std::bad_alloc()).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status_of(c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "full")).code(),
            StatusCode::kResourceExhausted);
}

TEST(Caught, ErrorsThatStayLoseTheDevice) {
  for (const int code : {700, 710, 716, 719, 214, 209}) {
    EXPECT_EQ(of_cuda(code).code(), StatusCode::kUnavailable) << code;
  }
}

TEST(Caught, OthersEndTheBatchAlone) {
  EXPECT_EQ(of_cuda(1).code(), StatusCode::kInternal);  // cudaErrorInvalidValue
  EXPECT_EQ(of_cuda(9).code(), StatusCode::kInternal);  // cudaErrorInvalidConfiguration
  EXPECT_EQ(of_text("CUDA error: CUBLAS_STATUS_INVALID_VALUE").code(), StatusCode::kInternal);
  const absl::Status status = status_of(std::runtime_error("why"));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "cuda:0: why");
}

}  // namespace
}  // namespace tandem
