// Which columns of a product y = x W^T are needed. The CPU's own products compute only these, in
// whole panels; others compute more.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::cpu {

struct Columns {
  int64_t first = 0;              // the first ones; 0: all
  int64_t whole = 0;              // and all columns of the first `whole` rows; on CPUs only, else 0
  std::span<const int32_t> more;  // and these, ascending; on CPUs only, with whole = 0
};

}  // namespace tandem::cpu
