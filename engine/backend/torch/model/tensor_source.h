// Where a model's weights come from: a checkpoint, or arrays that a test made.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/weights/safetensors.h"

namespace tandem {

struct TensorSource {
  std::function<const TensorView*(const std::string&)> find;  // null: no such tensor
  std::function<void(const TensorView&)> done = {};  // will not be read again soon; may be empty
};

// The tensors of these names, which agree in all but the first dimension, one after the other
// along it, as `type` on `device`. NOT_FOUND, naming the tensor; INVALID_ARGUMENT: other shape.
absl::StatusOr<at::Tensor> load_stacked(const TensorSource& source,
                                        const std::vector<std::string>& names,
                                        const std::vector<std::vector<int64_t>>& shapes,
                                        at::ScalarType type, at::Device device);

// The same of matrices, packed for the CPU's products. INVALID_ARGUMENT too: a number that fp16
// cannot hold.
absl::StatusOr<cpu::PackedMatrix> load_packed(const TensorSource& source,
                                              const std::vector<std::string>& names,
                                              const std::vector<std::vector<int64_t>>& shapes,
                                              cpu::WeightType type,
                                              cpu::Layout layout = cpu::Layout::kInOrder);

}  // namespace tandem
