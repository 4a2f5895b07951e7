// Loads weights from a file's tensors: converts, stacks and packs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/tensor_source.h"
#include "engine/base/config.h"

namespace tandem {

// The tensor of this name and shape, as `type` on `device`. NOT_FOUND: no such tensor.
// INVALID_ARGUMENT: another shape. Errors name the tensor.
absl::StatusOr<at::Tensor> load_tensor(const TensorSource& source, const std::string& name,
                                       const std::vector<int64_t>& shape, at::ScalarType type,
                                       at::Device device);

// A layer's matrices, stacked, as `type` on `device`: [sum of outs, in]. Errors as above.
absl::StatusOr<at::Tensor> load_matrix(const TensorSource& source, const LinearSpec& spec,
                                       at::ScalarType type, at::Device device);

// Calls take(first row, rows, their numbers of `type`) for all rows of a layer's matrices, stacked,
// in chunks. type: not kInt8. Errors as above; also INVALID_ARGUMENT: a number beyond fp16.
absl::Status load_rows(const TensorSource& source, const LinearSpec& spec, cpu::WeightType type,
                       const std::function<void(int64_t, int64_t, const std::byte*)>& take);

// A layer's matrices, packed for the CPU's products. Also INVALID_ARGUMENT: a number beyond fp16.
absl::StatusOr<cpu::PackedMatrix> load_packed(const TensorSource& source, const LinearSpec& spec,
                                              cpu::WeightType type,
                                              cpu::Layout layout = cpu::Layout::kInOrder);

// A layer's matrices in the file's blocks, packed for the CPU's products. Empty: a matrix is not in
// blocks, there is no product for its blocks, or layout is kPairs and the two halves differ. Also
// INVALID_ARGUMENT: a scale that is not finite.
absl::StatusOr<cpu::QuantizedMatrix> load_quantized(const TensorSource& source,
                                                    const LinearSpec& spec,
                                                    cpu::Layout layout = cpu::Layout::kInOrder);

// A layer's matrices, rounded to blocks: kInt4 to Q4_1, with spec.tokens to Q8_0; kQ40 to Q4_0,
// with spec.tokens to Q4_1. Empty: the number of inputs is not a multiple of 32. Also
// INVALID_ARGUMENT: a number that is not finite or beyond fp16.
absl::StatusOr<cpu::QuantizedMatrix> load_rounded(const TensorSource& source,
                                                  const LinearSpec& spec, DType dtype,
                                                  cpu::Layout layout = cpu::Layout::kInOrder);

// A layer's matrices, rounded to fp8 with a scale per row, on `device`. Undefined tensors: a size
// is not a multiple of kFp8Multiple, or spec.tokens. Also INVALID_ARGUMENT: a number that is not
// finite.
absl::StatusOr<Fp8Weights> load_fp8(const TensorSource& source, const LinearSpec& spec,
                                    at::Device device);

// A layer's biases, [sum of outs]; undefined: none.
absl::StatusOr<at::Tensor> load_bias(const TensorSource& source, const LinearSpec& spec,
                                     at::ScalarType type, at::Device device);

}  // namespace tandem
