#include "engine/base/embedding.h"

#include <cmath>
#include <cstddef>

namespace tandem {

std::vector<double> DenseLayer::of(const std::vector<double>& x) const {
  std::vector<double> y(bias.begin(), bias.end());
  y.resize(static_cast<size_t>(out));
  const float* row = weight.data();
  for (double& sum : y) {
    for (const double value : x) sum += value * static_cast<double>(*row++);
    if (tanh) sum = std::tanh(sum);
  }
  return y;
}

}  // namespace tandem
