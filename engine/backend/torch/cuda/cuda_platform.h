// CUDA devices as a platform.
#pragma once

#include "engine/backend/torch/platform.h"

namespace tandem::cuda {

const Platform& platform();

}  // namespace tandem::cuda
