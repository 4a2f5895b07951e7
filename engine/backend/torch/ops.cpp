#include "engine/backend/torch/ops.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace tandem {

Rope::Rope(std::vector<float> inverse, at::ScalarType type, at::Device device, double scale)
    : factor(scale), host_(std::move(inverse)), type_(type) {
  at::Tensor t = at::empty({static_cast<int64_t>(host_.size())}, at::kFloat);
  std::memcpy(t.mutable_data_ptr(), host_.data(), host_.size() * sizeof(float));
  inverse_frequencies = t.to(device);
}

void Rope::reach(int max_position) {
  if (host_.empty() || max_position < positions_ || !inverse_frequencies.is_cpu()) return;
  positions_ = std::max({256, 2 * positions_, max_position + 1});
  const auto half = static_cast<int64_t>(host_.size());
  cosine = at::empty({positions_, half}, type_);
  sine = at::empty({positions_, half}, type_);
  const auto fill = [&]<class R>(R* c, R* s) {
    for (int64_t p = 0; p < positions_; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(p) * host_[static_cast<size_t>(i)];
        c[p * half + i] = static_cast<R>(factor * std::cos(static_cast<double>(angle)));
        s[p * half + i] = static_cast<R>(factor * std::sin(static_cast<double>(angle)));
      }
    }
  };
  if (type_ == at::kDouble) {
    fill(static_cast<double*>(cosine.mutable_data_ptr()),
         static_cast<double*>(sine.mutable_data_ptr()));
  } else {
    fill(static_cast<float*>(cosine.mutable_data_ptr()),
         static_cast<float*>(sine.mutable_data_ptr()));
  }
}

}  // namespace tandem
