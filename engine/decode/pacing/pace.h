#pragma once

#include <cstdint>

namespace tandem {

// How a method chooses the number of draft tokens (or the rows of a BiTA tree) of a round.
enum class Pace : uint8_t {
  kFixed,     // always the configured number
  kAdaptive,  // follows the accept length, up to the configured number
  kFastest,   // maximizes tokens per second, from 0 to the configured number
};

}  // namespace tandem
