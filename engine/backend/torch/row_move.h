// A move of rows between pages as kernels read it.
#pragma once

#include <cstdint>

namespace tandem {

// `rows` rows from from_slot on to those from to_slot on, of the first `layers` layers.
struct RowMove {
  int64_t from_page, to_page;
  int32_t from_slot, to_slot;
  int32_t rows, layers;
};

}  // namespace tandem
