#include <array>

#include "engine/backend/torch/weights/architectures/architecture.h"

namespace tandem {

std::span<const Architecture* const> architectures() {
  static constexpr std::array kAll{&kLlama, &kMistral, &kQwen2, &kQwen3, &kGemma3,    &kGpt2,
                                   &kPhi3,  &kFalcon,  &kT5,    &kMt5,   &kStarcoder2};
  return kAll;
}

}  // namespace tandem
