// A move of rows between pages, in the form that kernels read.
#pragma once

#include <cstdint>

namespace tandem {

// Moves `rows` rows, starting at from_slot and to_slot, of the first `layers` layers.
struct RowMove {
  int64_t from_page, to_page;
  int32_t from_slot, to_slot;
  int32_t rows, layers;
};

}  // namespace tandem
