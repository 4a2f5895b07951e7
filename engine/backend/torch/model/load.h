// From a file's tensors to memory: where weights are converted, stacked and packed.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// The tensor of this name and shape, as `type` on `device`. NOT_FOUND, naming the tensor;
// INVALID_ARGUMENT: other shape.
absl::StatusOr<at::Tensor> load_tensor(const TensorSource& source, const std::string& name,
                                       const std::vector<int64_t>& shape, at::ScalarType type,
                                       at::Device device);

// A layer's matrices one below the other, as `type` on `device`: [sum of outs, in]. Errors as
// above.
absl::StatusOr<at::Tensor> load_matrix(const TensorSource& source, const LinearSpec& spec,
                                       at::ScalarType type, at::Device device);

// The same, packed for the CPU's products. INVALID_ARGUMENT too: a number that fp16 cannot hold.
absl::StatusOr<cpu::PackedMatrix> load_packed(const TensorSource& source, const LinearSpec& spec,
                                              cpu::WeightType type,
                                              cpu::Layout layout = cpu::Layout::kInOrder);

// The same in the blocks that the file has, packed for the CPU's products. Empty where a matrix is
// not in blocks that they know, or layout is kPairs and the two differ. INVALID_ARGUMENT too: a
// scale that is not finite.
absl::StatusOr<cpu::QuantizedMatrix> load_quantized(const TensorSource& source,
                                                    const LinearSpec& spec,
                                                    cpu::Layout layout = cpu::Layout::kInOrder);

// The same, rounded to blocks of 4 bits, or of 8 where spec.tokens says so. Empty where inputs are
// not a multiple of 32. INVALID_ARGUMENT too: a row with numbers that are not
// finite, or that fp16 does not hold.
absl::StatusOr<cpu::QuantizedMatrix> load_rounded(const TensorSource& source,
                                                  const LinearSpec& spec,
                                                  cpu::Layout layout = cpu::Layout::kInOrder);

// Its biases, [sum of outs]. Undefined without biases.
absl::StatusOr<at::Tensor> load_bias(const TensorSource& source, const LinearSpec& spec,
                                     at::ScalarType type, at::Device device);

}  // namespace tandem
